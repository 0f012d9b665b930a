#include "cache/policies/tova/tova.h"

#include "cache/parameters.h"
#include "cache/stores/slot_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

// The attention of the last query before the boundary, averaged over the KV heads of the layer.
class TovaScorer final : public AttentionScorer {
 public:
  std::string_view name() const override { return "tova"; }
  int64_t n_probes() const override { return 1; }
  bool pools_heads() const override { return true; }
  void score(std::span<const float> /*previous*/, std::span<float> /*mass*/) const override {}
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_tova_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("tova", parameters);
  const EvictionOptions options = read_eviction_options(&read, context.shape);
  read.done();
  return std::make_unique<StagedPolicy>("tova", context, options.boundaries(),
                                        std::make_unique<SlotStoreFactory>(options, std::make_shared<TovaScorer>()));
}

}  // namespace smartkv
