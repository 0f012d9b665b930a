// The store of mixed_precision. Probe queries give statistics, from which follow the sensitivities of each page, and
// one price per bit chooses all widths.
//
// A page has one layout for all KV heads. Tensor-parallel ranks add up what their heads find out about pages, and
// decide for the model's pages as a single process would.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/policies/mixed_precision/allocation.h"
#include "cache/policies/mixed_precision/forecast.h"
#include "cache/stores/page_store.h"

namespace smartkv {

struct MixedOptions {
  // Bits per value, every byte counted, at `horizon` tokens and beyond.
  double bits = 4.5;
  int64_t horizon = 4096;
  // Limit for the whole sequence, however long, as far as 2 bits allow; used instead of `bits`. 0: `bits` is used.
  int64_t bytes = 0;
  int64_t window = 0;          // Most recent tokens, kept exactly.
  int64_t prompt_stride = 64;  // Tokens between the boundaries of a prompt.
  // Least bits of a quad: 2, or 0, with which the least important quads keep only their means.
  int64_t least_bits = 2;
  int64_t probes = 8;  // Probe queries before each boundary.
  double decay = 0.6;  // Decay of the importance, per boundary.
  ForecastOptions forecast;
};

// Statistics and layout of a page of one layer.
struct MixedPageState {
  float importance = 0;  // Decayed mean over boundaries of the attention that the page draws.
  float previous = 0;    // The importance one boundary ago.
  // Boundaries since the page drew more attention than the mean of its layer's pages.
  float age = 0;
  float forecast = 0;  // Forecast of the importance at the next boundary, if enabled.
  float mass = 0;      // Attention since the last boundary.
  kernels::QuantizedLayout layout;
  std::vector<LogSensitivity> quads;  // Sensitivities of K's quads, then of V's, at importance 1.
};

// A forecast that waits for its outcome, the page's next importance.
struct PendingForecast {
  int64_t layer = 0, page = 0;
  ImportanceForecast::Features features = {};
  float predicted = 0, average = 0;  // Log importance by the network and by the moving average.
};

// Returns the bytes of statistics per page and layer.
int64_t page_state_bytes(const CacheShape& shape);

// Returns the bytes that `pages` quantized pages of each layer may take together, over all layers, in a sequence of
// `tokens` tokens.
int64_t mixed_budget(const CacheShape& shape, const MixedOptions& options, int64_t tokens, int64_t pages);

// Returns the least bytes of `pages` quantized pages of each layer: the first and the newest in 8 bits, the others in
// least_bits.
int64_t least_bytes(const CacheShape& shape, const MixedOptions& options, int64_t pages);

class MixedStore final : public PageStore {
 public:
  MixedStore(const PolicyContext& context, const MixedOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<MixedStore>(*this); }
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  int64_t stable_bytes() const override;
  void add_details(std::map<std::string, double>* details) const override;

 private:
  struct Layer {
    std::vector<float> q2;  // [n_kv_heads, head_dim]: sum of q^2 over the query heads of all probes.
    int64_t q2_probes = 0;
    int64_t probes = 0;  // Since the last boundary.
    std::shared_ptr<std::vector<uint8_t>> channel_order;
    std::vector<MixedPageState> pages;
    // [n_kv_heads, tail at the next boundary]: attention that tail tokens drew. Empty if there was no probe yet.
    std::vector<float> tail_mass;
    double value_norm = 0;  // Mean of |v|^2 over pages.
  };

  // Statistics of a page that is about to be packed.
  struct NewPage {
    std::vector<uint8_t> order;  // [n_kv_heads, kPageTokens]: tokens in the order of the page.
    double norm = 0;             // Mean of |v|^2, summed over KV heads.
    double mass = 0;             // Attention that probes gave its tokens.
    std::vector<double> quads;   // Sensitivities of K's quads, then of V's, at importance 1.
  };

  // Statistics of a page, computed by the backend.
  struct PageStatistics {
    std::vector<float> k_range, v_range;  // [n_kv_heads, head_dim], [n_kv_heads, kPageTokens]
    std::vector<double> v_squares;        // [n_kv_heads]
  };

  void plan(const StageView& view, int64_t made) override;
  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override;
  int64_t page_bytes(int64_t) const override { return quantized_bytes(shape(), widest_layout(shape())); }
  std::shared_ptr<const std::vector<uint8_t>> channel_order(int64_t layer, int64_t /*i*/) const override {
    return layers_[static_cast<size_t>(layer)].channel_order;
  }
  void end_boundary() override;
  void load_layer(const StageView& view, StateReader* in, Layer* layer) const;
  void load_forecast(const StageView& view, StateReader* in);
  // Returns the bytes of pages [first, end) of all layers in their present layouts, with the KV heads of `shape`.
  int64_t bytes_between(const CacheShape& shape, int64_t first, int64_t end) const;
  int64_t n_pages_planned() const { return static_cast<int64_t>(layers_[0].pages.size()); }
  void average_importance();
  // Ask the backend for statistics of the tail: channel ranges of the first page without its sinks, f32 [n_kv_heads,
  // head_dim], and all statistics of page i. The results are there after KvBackend::finish().
  void ask_ranges(const DenseLayer& tail, std::vector<float>* k_range) const;
  void ask_stats(const DenseLayer& tail, int64_t i, PageStatistics* figures) const;
  // Sorts a layer's channels by sensitivity.
  void order_channels(int64_t layer, std::span<const float> k_range);
  // Computes the token order and the sensitivities of new page i from its statistics.
  void page_stats(int64_t layer, int64_t i, const PageStatistics& figures, NewPage* page) const;
  // Adds up what is known about pages over all tensor-parallel ranks.
  void share();
  // Returns the logarithm of a page's importance, to be added to its sensitivities.
  int32_t shift(int64_t layer, const MixedPageState& page) const;
  // Which existing pages may be narrowed: pages from `first` on, if that saves 1 / least_saving of the page's bytes or
  // more. If more than most_pages pages qualify, the pages that save most are narrowed.
  struct Narrowing {
    int64_t first, least_saving, most_pages;
  };
  struct Change {
    int64_t layer, page, saved;
  };
  // Returns the layout that page i should have at a price. An existing page never gets wider.
  kernels::QuantizedLayout target(int64_t layer, int64_t i, int32_t price, int64_t least_saving) const;
  // Returns the bytes, at a price, of the pages from narrowing.first on. Sets *changes to the existing pages that are
  // narrowed.
  int64_t bytes_at(int32_t price, const Narrowing& narrowing, std::vector<Change>* changes) const;
  // Returns how many existing pages may be narrowed when each layer has `made` new ones.
  int64_t most_narrowed(int64_t made) const;
  // Finds the price, narrows existing pages and decides the layouts of new ones.
  void fit(int64_t budget);
  int64_t state_bytes() const;
  // Trains on the pending forecasts. Their outcomes are known now.
  void learn_forecast();
  // Forecasts the importance of every page, and makes a sample of them pending.
  void forecast();
  ImportanceForecast::Features features(int64_t layer, int64_t page) const;

  MixedOptions options_;
  CacheShape whole_;  // With all KV heads of the model, which budgets are for.
  std::vector<Layer> layers_;
  std::vector<double> layer_importance_;  // Mean importance of the pages, by layer.
  std::vector<NewPage> new_pages_;        // [n_layers, made], at a boundary only.
  int64_t first_new_ = 0;                 // Number of the first new page.
  int64_t tokens_ = 0;                    // Length of the sequence at the last boundary.
  std::optional<ImportanceForecast> forecast_;
  std::vector<PendingForecast> pending_;
  double forecast_error_ = 0, average_error_ = 0;  // Sums of squared errors of log importance.
  int64_t forecasts_ = 0;
  PoolCharge state_;
};
using MixedStoreFactory = StoreFactoryOf<MixedStore, true, MixedOptions>;

}  // namespace smartkv
