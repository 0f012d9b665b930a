#include "cache/policies/random/random.h"

#include "cache/stores/slot_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {

void RandomScorer::score(const PolicyContext& context, const ScoredTokens& tokens, float* scores,
                         float* /*importance*/) const {
  for (int64_t head = 0; head < context.shape.n_kv_heads; ++head) {
    for (int64_t i = 0; i < tokens.n; ++i) {
      // SplitMix64 (Steele et al. 2014) of layer, head and position.
      uint64_t x =
          static_cast<uint64_t>((tokens.layer * 4096 + context.first_kv_head() + head) << 40 | (tokens.first + i)) +
          0x9e3779b97f4a7c15u;
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
      scores[head * tokens.n + i] = static_cast<float>((x ^ (x >> 31)) >> 40);
    }
  }
}

std::unique_ptr<KvCachePolicy> make_random_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("random", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  read.done();
  return std::make_unique<StagedPolicy>("random", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, std::make_shared<RandomScorer>()));
}

}  // namespace smartkv
