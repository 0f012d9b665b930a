#include "cache/policies/random/random.h"

#include "cache/stages/slot_store.h"
#include "cache/stages/staged_policy.h"
#include "cache/stages/token_scorer.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_random_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("random", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  read.done();
  return std::make_unique<StagedPolicy>("random", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, make_scorer(context, "random", "")));
}

}  // namespace smartkv
