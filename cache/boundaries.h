// Compaction boundaries: the token counts at which a sequence compresses. They depend on positions and on the prompt's
// length alone.
#pragma once

#include <cstdint>

#include "kernels/quantized_page.h"

namespace smartkv {

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
  // Returns the most tokens that the tail holds at any time while the sequence grows to n_tokens.
  int64_t most_in_tail(int64_t n_tokens) const;
  // Returns the first boundary past any number of tokens.
  int64_t next(int64_t tokens) const;
  // Returns whether both have the same boundaries up to `tokens`, and the same probe queries up to there: those are the
  // last n_probes queries before each boundary.
  bool agree(const Boundaries& other, int64_t tokens, int64_t n_probes) const;
};

}  // namespace smartkv
