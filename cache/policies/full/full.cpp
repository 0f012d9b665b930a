#include "cache/policies/full/full.h"

#include "cache/parameters.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters("full", parameters).done();
  return std::make_unique<StagedPolicy>("full", context, Boundaries(), std::vector<std::unique_ptr<StoreFactory>>());
}

}  // namespace smartkv
