#include "cache/policies/streaming/streaming.h"

#include <algorithm>

#include "cache/stores/slot_store.h"
#include "cache/stores/staged_policy.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {
namespace {

// No token is worth a slot.
class NoScorer final : public ContentScorer {
 public:
  std::string_view name() const override { return "none"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores,
             float* /*importance*/) const override {
    std::fill_n(scores, context.shape.n_kv_heads * tokens.n, 0.0f);
  }
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_streaming_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  constexpr int64_t kPage = kernels::kPageTokens, kMost = int64_t{1} << 24;
  Parameters read("streaming", parameters);
  EvictionOptions options;
  options.tokens = read.integer("tokens", 1024, 3 * kPage, kMost, "kept in all");
  options.sinks = read.integer("sinks", kPage, 1, kMost, "first tokens, which stay; fewer than a page save nothing");
  options.exact_prefill = read.choice("prefill", "exact", {"exact", "streaming"},
                                      "evicts at the prompt's end, or from its first tokens on") == "exact";
  read.done();
  // The window is all that the pages of the sinks and the page that is being filled leave.
  options.window =
      std::max<int64_t>(1, (options.tokens - (options.sinks + kPage - 1) / kPage * kPage - kPage) / kPage * kPage);
  check_eviction(options);
  return std::make_unique<StagedPolicy>("streaming", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, std::make_shared<NoScorer>()));
}

}  // namespace smartkv
