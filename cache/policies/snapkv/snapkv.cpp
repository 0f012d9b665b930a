#include "cache/policies/snapkv/snapkv.h"

#include <algorithm>

#include "cache/stores/shared_budget_store.h"
#include "cache/stores/staged_policy.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {
namespace {

// Attention from the last queries alone, max-pooled over neighboring tokens.
class SnapKvScorer final : public AttentionScorer {
 public:
  std::string_view name() const override { return "snapkv"; }
  int64_t n_probes() const override { return 32; }
  void score(std::span<const float>, std::span<float> mass) const override {
    constexpr int64_t kReach = 3;  // A window of 7 tokens.
    const std::vector<float> own(mass.begin(), mass.end());
    const auto n = static_cast<int64_t>(own.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto from = own.begin() + std::max<int64_t>(0, i - kReach);
      mass[static_cast<size_t>(i)] = *std::max_element(from, own.begin() + std::min(n, i + kReach + 1));
    }
  }
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_snapkv_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("snapkv", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  const bool shared = read.choice("sizes", "equal", {"equal", "shared"},
                                  "as many tokens in each layer and KV head, or one budget for all") == "shared";
  read.done();
  return std::make_unique<StagedPolicy>("snapkv", context, options.boundaries(),
                                        make_slot_store(shared, {options}, std::make_shared<SnapKvScorer>()));
}

}  // namespace smartkv
