#include "cache/policies/snapkv/snapkv.h"

#include "cache/stages/shared_slot_store.h"
#include "cache/stages/staged_policy.h"
#include "cache/stages/token_scorer.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_snapkv_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("snapkv", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  const bool shared = read.choice("sizes", "equal", {"equal", "shared"}) == "shared";
  read.done();
  return std::make_unique<StagedPolicy>("snapkv", context, options.boundaries(),
                                        make_slot_store(shared, {options}, make_scorer(context, "snapkv", "")));
}

}  // namespace smartkv
