#include "cache/policies/calibrated/calibrated.h"

#include "cache/parameters.h"
#include "cache/policies/calibrated/sensitivity.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// The first page is in 8 bits: it holds the sinks, whose keys are unlike all others.
class CalibratedStore final : public PageStore {
 public:
  CalibratedStore(const PolicyContext& context, std::shared_ptr<const ModelWidths> widths)
      : PageStore(context), widths_(std::move(widths)) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<CalibratedStore>(*this); }
  int64_t stable_bytes() const override { return bytes(); }

  void save(StateWriter* out) const override {
    out->fields(widths_->fingerprint);
    PageStore::save(out);
  }
  void load(const StageView& view, StateReader* in) override {
    in->expect(in->value<uint64_t>() == widths_->fingerprint, "the widths that this model has now");
    PageStore::load(view, in);
  }

 private:
  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override {
    const kernels::PageSource source{tokens};
    if (i == 0) return std::make_shared<QuantizedPage>(context().pool, widest_layout(shape()), nullptr, source);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, source);
  }
  QuantizedPageRef load_page(int64_t layer, int64_t i, StateReader* in) const override {
    if (i == 0) return PageStore::load_page(layer, i, in);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, in);
  }
  int64_t page_bytes(int64_t layer, int64_t i) const override {
    return i == 0 ? quantized_bytes(shape(), widest_layout(shape())) : widths_->layers[static_cast<size_t>(layer)].bytes;
  }
  std::shared_ptr<const kernels::WidthTable> table(int64_t layer) const {
    return {widths_, &widths_->layers[static_cast<size_t>(layer)]};
  }

  std::shared_ptr<const ModelWidths> widths_;
};

using CalibratedStoreFactory = StoreFactoryOf<CalibratedStore, false, std::shared_ptr<const ModelWidths>>;

}  // namespace

std::unique_ptr<KvCachePolicy> make_calibrated_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("calibrated", parameters);
  const double bits = read.number("bits", 4.5, 0.5, 8.125, "bits of a value in a page, scales included");
  const int64_t window = read.integer("window", kPageTokens, 0, int64_t{1} << 24, "most recent tokens, exact");
  const Boundaries boundaries{window, read_prompt_stride(&read, kPromptStride), 0};
  read.done();
  if (context.load_sensitivity == nullptr || context.rope == nullptr) {
    throw CacheError("kv_cache: calibrated: expected a calibrated model, found none");
  }
  const auto rotations = std::make_shared<kernels::PageRotations>(context.shape.head_dim, context.rope);
  const auto widths = allocate_widths(*context.load_sensitivity(), context.shape, context.first_kv_head(), bits, rotations);
  return std::make_unique<StagedPolicy>("calibrated", context, boundaries,
                                        std::make_unique<CalibratedStoreFactory>(widths));
}

}  // namespace smartkv
