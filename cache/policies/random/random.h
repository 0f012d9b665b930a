// Baseline: slots go to tokens drawn at random, by a hash of layer, KV head and position.
#pragma once

#include "cache/policy.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {

// A pseudo-random score for each layer, KV head and position.
class RandomScorer final : public ContentScorer {
 public:
  std::string_view name() const override { return "random"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* importance) const override;
};

std::unique_ptr<KvCachePolicy> make_random_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
