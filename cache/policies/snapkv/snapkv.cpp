#include "cache/policies/snapkv/snapkv.h"

#include "cache/eviction/eviction_policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_snapkv_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("snapkv", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape, {});
  read.done();
  return std::make_unique<EvictionPolicy>("snapkv", context, options, make_scorer(context, "snapkv", ""));
}

}  // namespace smartkv
