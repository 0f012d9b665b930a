#include "cache/policies/calibrated/calibrated.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "cache/parameters.h"
#include "cache/policies/calibrated/sensitivity.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr double kLeastPageBits = 0.5;

// Below these bits, the pages of a cache have two tiers of tokens.
constexpr double kTwoTiers = 3;
// Queries before each boundary whose attention chooses the wide tokens.
constexpr int64_t kProbes = 16;

// The first page is in 8 bits: it holds the sinks, whose keys are unlike all others.
class CalibratedStore final : public PageStore {
 public:
  CalibratedStore(const PolicyContext& context, std::shared_ptr<const ModelWidths> widths)
      : PageStore(context), widths_(std::move(widths)), state_(context.pool) {
    if (wide_tokens() > 0) mass_.resize(widths_->layers.size());
  }
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<CalibratedStore>(*this); }
  int64_t stable_bytes() const override { return bytes(); }

  StoreBytes bytes_at(const StageView& /*view*/, const Moment& then) const override {
    const int64_t pages = then.left / kPageTokens, made = then.taken / kPageTokens;
    StoreBytes bytes;
    if (then.probes(n_probes()) > 0) bytes.state = mass_bytes(then.next - then.left);
    for (const kernels::WidthTable& table : widths_->layers) {
      const auto first = [&](int64_t n) { return n == 0 ? 0 : first_page_bytes() + (n - 1) * table.bytes; };
      bytes.pages += first(pages);
      bytes.take.push_back(first(pages) - first(pages - made));
    }
    return bytes;
  }
  void save(StateWriter* out) const override {
    out->fields(widths_->fingerprint);
    for (const std::vector<float>& mass : mass_) out->fields(mass);
    PageStore::save(out);
  }
  void load(const StageView& view, StateReader* in) override {
    in->expect(in->value<uint64_t>() == widths_->fingerprint, "the widths that this model has now");
    for (std::vector<float>& mass : mass_) {
      in->fields(mass);
      in->expect(mass.empty() || std::ssize(mass) == shape().n_kv_heads * (view.next_boundary - view.tail_first),
                 "a mass for each tail token");
    }
    PageStore::load(view, in);
    state_.set(mass_bytes());
  }
  void add_stats(const StageView& view, CacheStats* stats) const override {
    PageStore::add_stats(view, stats);
    stats->bytes += state_.bytes();
  }

  int64_t n_probes() const override { return wide_tokens() > 0 ? kProbes : 0; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override {
    std::vector<float>& mass = mass_[static_cast<size_t>(layer)];
    const int64_t tail = view.next_boundary - view.tail_first;
    mass.resize(static_cast<size_t>(shape().n_kv_heads * tail));
    for (int64_t head = 0; head < shape().n_kv_heads; ++head) {
      const float* const row = probe.mass + head * probe.stride + probe.tail;
      for (int64_t i = 0; i < probe.n_tail; ++i) mass[static_cast<size_t>(head * tail + i)] += row[i];
    }
    state_.set(mass_bytes());
  }

 private:
  // Returns the masks of the wide tokens of new page i: those that the probes attend to most.
  std::vector<uint64_t> wide_masks(int64_t layer, int64_t i) const {
    const std::vector<float>& mass = mass_[static_cast<size_t>(layer)];
    const int64_t heads = shape().n_kv_heads, tail = std::ssize(mass) / heads;
    std::vector<uint64_t> masks(static_cast<size_t>(heads));
    for (int64_t head = 0; head < heads; ++head) {
      std::array<uint8_t, kPageTokens> best;
      std::iota(best.begin(), best.end(), uint8_t{0});
      if (!mass.empty()) {
        const float* const row = mass.data() + head * tail + (i - n_pages()) * kPageTokens;
        std::ranges::stable_sort(best, [&](uint8_t a, uint8_t b) { return row[a] > row[b]; });
      }
      for (int64_t t = 0; t < wide_tokens(); ++t) {
        masks[static_cast<size_t>(head)] |= uint64_t{1} << best[static_cast<size_t>(t)];
      }
    }
    return masks;
  }
  int64_t wide_tokens() const { return widths_->layers[0].wide_tokens; }

  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override {
    const kernels::PageSource source{tokens};
    if (i == 0) return std::make_shared<QuantizedPage>(context().pool, widest_layout(shape()), nullptr, source);
    if (wide_tokens() == 0) return std::make_shared<QuantizedPage>(context().pool, table(layer), i, source);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, source, wide_masks(layer, i).data());
  }
  void end_boundary() override {
    for (std::vector<float>& mass : mass_) std::vector<float>().swap(mass);
    state_.set(0);
  }
  QuantizedPageRef load_page(int64_t layer, int64_t i, StateReader* in) const override {
    if (i == 0) return PageStore::load_page(layer, i, in);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, in);
  }
  int64_t page_bytes(int64_t i) const override { return i == 0 ? first_page_bytes() : widths_->most_page_bytes(); }
  int64_t first_page_bytes() const { return quantized_bytes(shape(), widest_layout(shape())); }
  std::shared_ptr<const kernels::WidthTable> table(int64_t layer) const {
    return {widths_, &widths_->layers[static_cast<size_t>(layer)]};
  }

  // Returns the bytes of mass_ with this many tokens of the tail.
  int64_t mass_bytes(int64_t tail) const {
    return shape().n_layers * shape().n_kv_heads * tail * static_cast<int64_t>(sizeof(float));
  }
  int64_t mass_bytes() const {
    int64_t bytes = 0;
    for (const std::vector<float>& mass : mass_) bytes += static_cast<int64_t>(mass.capacity() * sizeof(float));
    return bytes;
  }

  std::shared_ptr<const ModelWidths> widths_;
  // With two tiers, by layer: the attention that the tail's tokens got from probes since the last boundary, f32
  // [n_kv_heads, tail at the next boundary]. Empty before the first probe.
  std::vector<std::vector<float>> mass_;
  PoolCharge state_;
};

using CalibratedStoreFactory = StoreFactoryOf<CalibratedStore, false, std::shared_ptr<const ModelWidths>>;

// Returns the bits of a value in the pages after the first one, so that the cache has `bits` at the horizon,
// right after a boundary. Before the next one up to 63 tokens more are exact.
double page_bits(const CacheShape& shape, double bits, int64_t horizon, int64_t window) {
  const int64_t pages = std::max<int64_t>(0, horizon - window) / kPageTokens;
  const double token = static_cast<double>(2 * shape.n_layers * shape.n_kv_heads * shape.head_dim);  // values
  const auto dense = static_cast<double>(shape.bytes_per_token() * (horizon - pages * kPageTokens));
  const auto first = static_cast<double>(shape.n_layers * quantized_bytes(shape, widest_layout(shape)));
  const double rest = bits / 8 * token * static_cast<double>(horizon) - dense - first;
  const double found = pages < 2 ? 0 : 8 * rest / (token * static_cast<double>((pages - 1) * kPageTokens));
  if (found >= kLeastPageBits) return found;
  throw CacheError("kv_cache.bits: expected enough for pages of " + std::to_string(kLeastPageBits).substr(0, 3) +
                   " bits at " + std::to_string(horizon) + " tokens (kv_cache.horizon), of which " +
                   std::to_string(window) + " are exact (kv_cache.window), found " + std::to_string(bits).substr(0, 4));
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_calibrated_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters read("calibrated", parameters);
  const double bits = read.number("bits", 4.5, 1, 16, "per value, every byte counted, from `horizon` tokens on");
  const int64_t horizon = read.integer("horizon", 4096, 1024, int64_t{1} << 24, "tokens at which `bits` hold");
  const int64_t window = read.integer("window", kPageTokens, 0, 65536, "most recent tokens, exact");
  const bool tiers =
      read.integer("tiers", bits < kTwoTiers ? 2 : 1, 1, 2,
                   "2: a quarter of the tokens, those that are attended to most, in wider codes; absent: 2 below 3 "
                   "bits") == 2;
  const Boundaries boundaries{window, read_prompt_stride(&read, kPromptStride), 0};
  read.done();
  const auto sensitivity = context.load_sensitivity == nullptr ? nullptr : context.load_sensitivity();
  if (sensitivity == nullptr) {
    throw ModelLacks(
        "kv_cache: calibrated: expected a model that was calibrated (smartkv calibrate), found one that was not");
  }
  const double of_pages = page_bits(context.shape, bits, horizon, window);
  const auto rotations =
      std::make_shared<kernels::PageRotations>(context.shape.head_dim, context.rope, context.pool->backend());
  const bool two_tiers = tiers && context.pool->backend()->has_tiers();
  const auto widths = allocate_widths(*sensitivity, context.shape, context.first_kv_head(), of_pages, two_tiers,
                                      rotations, context.pool->backend());
  auto policy = std::make_unique<StagedPolicy>("calibrated", context, boundaries,
                                               std::make_unique<CalibratedStoreFactory>(widths));
  if (tiers && !two_tiers) policy->set_stand_in("one tier of tokens, because the device's kernels read no others");
  return policy;
}

}  // namespace smartkv
