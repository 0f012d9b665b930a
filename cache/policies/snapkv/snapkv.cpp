#include "cache/policies/snapkv/snapkv.h"

#include "cache/stages/slot_store.h"
#include "cache/stages/staged_policy.h"
#include "cache/stages/token_scorer.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_snapkv_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("snapkv", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  read.done();
  return std::make_unique<StagedPolicy>("snapkv", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, make_scorer(context, "snapkv", "")));
}

}  // namespace smartkv
