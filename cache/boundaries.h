// After which tokens a sequence compresses: a function of positions and the prompt's length alone.
#pragma once

#include <cstdint>

#include "kernels/quantized_page.h"

namespace smartkv {

constexpr int64_t whole_pages(int64_t tokens) {
  return (tokens + kernels::kPageTokens - 1) / kernels::kPageTokens * kernels::kPageTokens;
}

// Whole pages leave the window of the most recent tokens: in a prompt at multiples of a stride and at its end, then as soon
// as a page can leave.
struct Boundaries {
  static constexpr int64_t kNever = INT64_MAX;

  int64_t window = kNever;  // tokens; kNever: nothing leaves
  int64_t stride = kernels::kPageTokens;  // between boundaries of the prompt, in whole pages; kNever: at its end only
  int64_t prompt_tokens = 0;

  // The first boundary past `tokens`, which is 0 or a boundary.
  int64_t after(int64_t tokens) const;
  // Tokens that are gone from the tail after the boundary at `tokens`.
  int64_t leaving(int64_t tokens) const {
    return tokens < window ? 0 : (tokens - window) / kernels::kPageTokens * kernels::kPageTokens;
  }
  // The most tokens that the tail of a sequence ever has while it grows to n_tokens.
  int64_t most_in_tail(int64_t n_tokens) const;
  // The first boundary past any `tokens`.
  int64_t next(int64_t tokens) const;
  // Whether both have the same boundaries up to `tokens`, and the same queries up to there are among the last n_probes before
  // a boundary.
  bool agree(const Boundaries& other, int64_t tokens, int64_t n_probes) const;
};

}  // namespace smartkv
