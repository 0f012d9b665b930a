#include "cache/policies/random/random.h"

#include "cache/eviction/eviction_policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_random_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("random", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape, {});
  read.done();
  return std::make_unique<EvictionPolicy>("random", context, options, make_scorer(context, "random", ""));
}

}  // namespace smartkv
