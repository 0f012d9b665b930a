#include "cache/policies/full/full.h"

#include "cache/parameters.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters("full", parameters).done();
  // Nothing is evicted, except for tokens that no layer sees any longer.
  Boundaries boundaries;
  if (context.window.tokens > 0 && context.window.in_all_layers) boundaries = {context.window.tokens, kPromptStride, 0};
  return std::make_unique<StagedPolicy>("full", context, boundaries, std::vector<std::unique_ptr<StoreFactory>>());
}

}  // namespace smartkv
