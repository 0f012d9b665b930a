#include "cache/policies/calibrated/calibrated.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <string>

#include "cache/parameters.h"
#include "cache/policies/calibrated/sensitivity.h"
#include "cache/stores/importance_scorer.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr double kLeastPageBits = 0.5;

// Below these bits, the pages of a cache have two tiers of tokens.
constexpr double kTwoTiers = 3;

// The first page is in 8 bits: it holds the sinks, whose keys are unlike all others.
class CalibratedStore final : public PageStore {
 public:
  // scorer: chooses the wide tokens; null with one tier.
  CalibratedStore(const PolicyContext& context, std::shared_ptr<const ModelWidths> widths,
                  std::shared_ptr<const PageScorer> scorer)
      : PageStore(context), widths_(std::move(widths)), scorer_(std::move(scorer)) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<CalibratedStore>(*this); }
  int64_t stable_bytes() const override { return bytes(); }

  StoreBytes bytes_at(const StageView& /*view*/, const Moment& then) const override {
    const int64_t pages = then.left / kPageTokens, made = then.taken / kPageTokens;
    StoreBytes bytes;
    for (const kernels::WidthTable& table : widths_->layers) {
      const auto first = [&](int64_t n) { return n == 0 ? 0 : first_page_bytes() + (n - 1) * table.bytes; };
      bytes.pages += first(pages);
      bytes.take.push_back(first(pages) - first(pages - made));
    }
    return bytes;
  }
  void save(StateWriter* out) const override {
    out->fields(widths_->fingerprint);
    PageStore::save(out);
  }
  void load(const StageView& view, StateReader* in) override {
    in->expect(in->value<uint64_t>() == widths_->fingerprint, "the widths that this model has now");
    PageStore::load(view, in);
  }

 private:
  void plan(const StageView& view, int64_t made) override {
    if (scorer_ == nullptr || made == 0) return;
    const int64_t heads = shape().n_kv_heads;
    scores_.resize(static_cast<size_t>(shape().n_layers * heads));
    int64_t scored = view.tail_first;
    score_tail(context(), scorer_, view, &scored, view.leaving(), false, [&](int64_t layer, const TokenScores& run) {
      for (int64_t head = 0; head < heads; ++head) {
        std::ranges::copy(run.of_head(head), std::back_inserter(scores_[static_cast<size_t>(layer * heads + head)]));
      }
    });
  }

  // Returns the masks of the wide tokens of new page i, the most important ones.
  std::vector<uint64_t> wide_masks(int64_t layer, int64_t i) const {
    const int64_t heads = shape().n_kv_heads, wide = widths_->layers[0].wide_tokens;
    std::vector<uint64_t> masks(static_cast<size_t>(heads));
    for (int64_t head = 0; head < heads; ++head) {
      const float* const score =
          scores_[static_cast<size_t>(layer * heads + head)].data() + (i - n_pages()) * kPageTokens;
      std::array<uint8_t, kPageTokens> best;
      std::iota(best.begin(), best.end(), uint8_t{0});
      std::ranges::stable_sort(best, [&](uint8_t a, uint8_t b) { return score[a] > score[b]; });
      for (int64_t t = 0; t < wide; ++t) {
        masks[static_cast<size_t>(head)] |= uint64_t{1} << best[static_cast<size_t>(t)];
      }
    }
    return masks;
  }

  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override {
    const kernels::PageSource source{tokens};
    if (i == 0) return std::make_shared<QuantizedPage>(context().pool, widest_layout(shape()), nullptr, source);
    if (scorer_ == nullptr) return std::make_shared<QuantizedPage>(context().pool, table(layer), i, source);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, source, wide_masks(layer, i).data());
  }
  void end_boundary() override { std::vector<std::vector<float>>().swap(scores_); }
  QuantizedPageRef load_page(int64_t layer, int64_t i, StateReader* in) const override {
    if (i == 0) return PageStore::load_page(layer, i, in);
    return std::make_shared<QuantizedPage>(context().pool, table(layer), i, in);
  }
  int64_t page_bytes(int64_t i) const override { return i == 0 ? first_page_bytes() : widths_->most_page_bytes(); }
  int64_t first_page_bytes() const { return quantized_bytes(shape(), widest_layout(shape())); }
  std::shared_ptr<const kernels::WidthTable> table(int64_t layer) const {
    return {widths_, &widths_->layers[static_cast<size_t>(layer)]};
  }

  std::shared_ptr<const ModelWidths> widths_;
  std::shared_ptr<const PageScorer> scorer_;
  // While a boundary is committed: importance of the tokens that leave the tail, by layer and KV head. Finite.
  std::vector<std::vector<float>> scores_;
};

using CalibratedStoreFactory =
    StoreFactoryOf<CalibratedStore, false, std::shared_ptr<const ModelWidths>, std::shared_ptr<const PageScorer>>;

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
                   "2: the most important quarter of the tokens has wider codes; absent: 2 below 3 bits") == 2;
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
  const auto widths = allocate_widths(*sensitivity, context.shape, context.first_kv_head(), of_pages, tiers, rotations,
                                      context.pool->backend());
  return std::make_unique<StagedPolicy>(
      "calibrated", context, boundaries,
      std::make_unique<CalibratedStoreFactory>(widths,
                                               tiers ? make_importance_scorer(importance_of(sensitivity)) : nullptr));
}

}  // namespace smartkv
