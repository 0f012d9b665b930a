#include "cache/policies/streaming/streaming.h"

#include "cache/stages/slot_store.h"
#include "cache/stages/staged_policy.h"
#include "cache/stages/token_scorer.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_streaming_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  constexpr int64_t kPage = kernels::kPageTokens, kMost = int64_t{1} << 24;
  Parameters read("streaming", parameters);
  EvictionOptions options;
  options.tokens = read.integer("tokens", 1024, 3 * kPage, kMost);
  options.sinks = read.integer("sinks", kPage, 1, kMost);  // Fewer than a page would not make the cache smaller.
  options.exact_prefill = read.choice("prefill", "exact", {"exact", "streaming"}) == "exact";
  read.done();
  // The window is all that the pages of the sinks and the page that is being filled leave.
  options.window = std::max<int64_t>(1, (options.tokens - (options.sinks + kPage - 1) / kPage * kPage - kPage) / kPage * kPage);
  check_eviction(options);
  return std::make_unique<StagedPolicy>("streaming", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, make_scorer(context, "none", "")));
}

}  // namespace smartkv
