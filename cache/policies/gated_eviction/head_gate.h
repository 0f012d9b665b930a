// Gates that score whole KV heads (DuoAttention, Xiao et al. 2024, arXiv:2410.10819).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"

namespace smartkv {

// Every token has the score of its KV head. Under one budget for all heads, the heads of highest score (retrieval
// heads) keep every token as far as the budget goes. The others (streaming heads) keep sinks and the latest tokens.
class HeadGate final : public Gate {
 public:
  // scores: f32 [n_layers, n_kv_heads], of all KV heads of the model.
  HeadGate(int64_t n_kv_heads, std::vector<float> scores) : n_kv_heads_(n_kv_heads), scores_(std::move(scores)) {}

  std::string description() const override { return "DuoAttention, one score for each KV head"; }
  int64_t n_layers() const override { return static_cast<int64_t>(scores_.size()) / n_kv_heads_; }
  int64_t bytes() const override { return static_cast<int64_t>(scores_.size() * sizeof(float)); }
  TokenScorer scorer(const PolicyContext& context) const override;

 private:
  int64_t n_kv_heads_;
  std::vector<float> scores_;
};

}  // namespace smartkv
