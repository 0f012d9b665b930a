// Compaction boundaries: the token counts at which a sequence compresses. They depend on positions and on the prompt's
// length alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/quantized_page.h"

namespace smartkv {

// A moment of a sequence: what its boundaries have done by then.
struct Moment {
  int64_t tokens = 0;  // of the sequence
  int64_t last = 0;    // the latest boundary that is committed; 0 if there is none
  int64_t next = 0;    // the first boundary that is not
  int64_t left = 0;    // tokens that have left the tail
  int64_t taken = 0;   // tokens that left it at `last`

  // Returns how many of the last n queries before `next` have come. A boundary forgets those before it.
  int64_t probes(int64_t n) const { return std::max<int64_t>(0, tokens - std::max(last, next - n)); }
};

// Rounds a number of tokens up to whole pages.
constexpr int64_t whole_pages(int64_t tokens) {
  return (tokens + kernels::kPageTokens - 1) / kernels::kPageTokens * kernels::kPageTokens;
}

// The most recent `window` tokens stay in the dense tail. Older tokens are evicted from it in whole pages: within a
// prompt at multiples of `stride` and at the prompt's end, afterwards as soon as a page is past the window.
struct Boundaries {
  static constexpr int64_t kNever = INT64_MAX;

  // Tokens that stay in the tail. kNever: nothing is evicted.
  int64_t window = kNever;
  // Tokens between the boundaries of a prompt, a multiple of kPageTokens. kNever: the only one is at the prompt's end.
  int64_t stride = kernels::kPageTokens;
  int64_t prompt_tokens = 0;

  // Returns the first boundary past `tokens`. REQUIRES: `tokens` is 0 or a boundary.
  int64_t after(int64_t tokens) const;
  // Returns how many of the sequence's first tokens are out of the tail after the boundary at `tokens`.
  int64_t leaving(int64_t tokens) const {
    return tokens < window ? 0 : (tokens - window) / kernels::kPageTokens * kernels::kPageTokens;
  }
  // Returns the last boundary at or before `tokens`, or 0.
  int64_t last(int64_t tokens) const;
  // Returns the first boundary past any number of tokens.
  int64_t next(int64_t tokens) const { return after(last(tokens)); }
  // Returns the moment of a sequence of `tokens` tokens that has committed every boundary up to there.
  Moment at(int64_t tokens) const { return since(last(tokens), tokens); }
  // Returns the moment of a sequence that has grown to a boundary and has not committed it.
  Moment before(int64_t boundary) const { return since(last(boundary - 1), boundary); }
  // Returns whether both have the same boundaries up to `tokens`, and the same probe queries up to there: those are the
  // last n_probes queries before each boundary.
  bool agree(const Boundaries& other, int64_t tokens, int64_t n_probes) const;

 private:
  Moment since(int64_t boundary, int64_t tokens) const {
    return {tokens, boundary, after(boundary), leaving(boundary), leaving(boundary) - leaving(last(boundary - 1))};
  }
};

}  // namespace smartkv
