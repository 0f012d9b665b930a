#include "cache/policies/gated_eviction/head_gate.h"

#include <algorithm>

namespace smartkv {
namespace {

class HeadScorer final : public ContentScorer {
 public:
  HeadScorer(int64_t n_kv_heads, std::vector<float> scores) : n_kv_heads_(n_kv_heads), scores_(std::move(scores)) {}
  std::string_view name() const override { return "learned"; }
  bool ranks_tokens() const override { return false; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores,
             float* /*importance*/) const override {
    const int64_t first = tokens.layer * n_kv_heads_ + context.first_kv_head();
    for (int64_t head = 0; head < context.shape.n_kv_heads; ++head) {
      std::fill_n(scores + head * tokens.n, tokens.n, scores_[static_cast<size_t>(first + head)]);
    }
  }

 private:
  int64_t n_kv_heads_;
  std::vector<float> scores_;
};

}  // namespace

TokenScorer HeadGate::scorer(const PolicyContext& /*context*/) const {
  return std::make_shared<HeadScorer>(n_kv_heads_, scores_);
}

}  // namespace smartkv
