// The job of a PageScorer (token_scorer.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"

namespace smartkv {

// Scores tokens [first, first + n) of one layer, counted from the first token of `pages`, which are dense.
struct TokenScoring {
  int64_t layer = 0;
  std::span<const kernels::KvSegment> pages;
  int64_t first = 0, n = 0;
  // Rotary embedding of each token, cosines, then sines: f32 [n, head_dim]. Only for a scorer that needs_angles().
  const float* angles = nullptr;
  // Results in host memory.
  float* scores = nullptr;      // f32 [n_kv_heads, n]
  float* importance = nullptr;  // f32 [PolicyContext::all_kv_heads(), n]; null if not needed
};

}  // namespace smartkv
