#include "cache/policies/gated_eviction/gated_eviction.h"

#include "cache/eviction/eviction_policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_gated_eviction_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("gated_eviction", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape, {});
  const std::string scorer = read.choice("scorer", "learned", {"learned", "attention", "key_norm"});
  const std::string gate = read.text("gate", "");
  read.done();
  return std::make_unique<EvictionPolicy>("gated_eviction", context, options, make_scorer(context, scorer, gate));
}

}  // namespace smartkv
