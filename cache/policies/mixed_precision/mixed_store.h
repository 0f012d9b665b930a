// The store of mixed_precision: statistics from probe queries, sensitivities of each page, widths by one price.
//
// A page has one layout for all KV heads. Where ranks hold some of them each, they add up what their heads find out about pages,
// and decide for the model's pages as one rank would.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/policies/mixed_precision/allocation.h"
#include "cache/policies/mixed_precision/forecast.h"
#include "cache/stages/page_store.h"

namespace smartkv {

struct MixedOptions {
  double bits = 4.5;         // per value, every byte counted, at `horizon` tokens and beyond
  int64_t horizon = 4096;
  int64_t bytes = 0;         // instead of bits: of the whole sequence, however long, as far as 2 bits allow; 0: bits
  int64_t window = 0;        // most recent tokens, exact
  int64_t prompt_stride = 64;  // tokens between the boundaries of a prompt
  int64_t least_bits = 2;    // of a quad: 2, or 0: what matters least keeps its mean only
  int64_t probes = 8;        // queries before each boundary whose attention counts
  double decay = 0.6;        // of the importance, per boundary
  ForecastOptions forecast;
};

// What a sequence knows of a page of one layer.
struct MixedPageState {
  float importance = 0;                      // decayed mean over boundaries
  float previous = 0;                        // the importance one boundary ago
  float age = 0;                             // boundaries since it drew more than its layer's mean
  float forecast = 0;                        // of the importance at the next boundary; if enabled
  float mass = 0;                            // since the last boundary
  kernels::QuantizedLayout layout;
  std::vector<LogSensitivity> quads;         // of K, then of V, at importance 1
};

// A page whose next importance will be the truth of a forecast.
struct PendingForecast {
  int64_t layer = 0, page = 0;
  ImportanceForecast::Features features = {};
  float predicted = 0, average = 0;          // log importance: the network's, and the moving average's
};

// Bytes of statistics per page and layer.
int64_t page_state_bytes(const CacheShape& shape);

// Bytes of code pages that `pages` pages over all layers may hold.
int64_t mixed_budget(const CacheShape& shape, const MixedOptions& options, int64_t tokens, int64_t pages);

// The least bytes of code pages: the first and the newest in 8 bits, the others in least_bits.
int64_t least_bytes(const CacheShape& shape, const MixedOptions& options, int64_t pages);

class MixedStoreFactory final : public StoreFactory {
 public:
  explicit MixedStoreFactory(const MixedOptions& options) : options_(options) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return true; }

 private:
  MixedOptions options_;
};

class MixedStore final : public PageStore {
 public:
  MixedStore(const PolicyContext& context, const MixedOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<MixedStore>(*this); }
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  StoreGrowth growth(const StageView& view, int64_t end) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  int64_t lasting_bytes() const override;
  void add_details(std::map<std::string, double>* details) const override;

 private:
  struct Layer {
    std::vector<float> q2;                     // [n_kv_heads, head_dim], sum over probes
    int64_t q2_probes = 0;
    int64_t probes = 0;                        // since the last boundary
    std::shared_ptr<std::vector<uint8_t>> channel_order;
    std::vector<MixedPageState> pages;
    std::vector<float> tail_mass;              // [n_kv_heads, tail at the next boundary]; empty: no probe yet
    double value_norm = 0;                     // mean of |v|^2 over pages
  };

  // What is known of a page that is about to be packed.
  struct NewPage {
    std::vector<uint8_t> order;                // [n_kv_heads, kPageTokens], tokens in the order of the page
    double norm = 0;                           // mean of |v|^2, summed over KV heads
    double mass = 0;                           // that probes gave its tokens
    std::vector<double> quads;                 // sensitivities, of K, then of V, at importance 1
  };

  // What the backend finds in a page.
  struct PageFigures {
    std::vector<float> k_range, v_range;       // [n_kv_heads, head_dim], [n_kv_heads, kPageTokens]
    std::vector<double> v_squares;             // [n_kv_heads]
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
  // Of pages [first, end) of all layers, in the layouts that they have, with the KV heads of `shape`.
  int64_t bytes_between(const CacheShape& shape, int64_t first, int64_t end) const;
  int64_t n_pages_planned() const { return static_cast<int64_t>(layers_[0].pages.size()); }
  void average_importance();
  // Of a page of the tail: f32 [n_kv_heads, head_dim], and PageFigures. There after KvBackend::finish().
  void ask_ranges(const DenseLayer& tail, std::vector<float>* k_range) const;  // of the first one, without the sinks
  void ask_figures(const DenseLayer& tail, int64_t i, PageFigures* figures) const;
  void order_channels(int64_t layer, std::span<const float> k_range);
  void study(int64_t layer, int64_t i, const PageFigures& figures, NewPage* page) const;
  void share();                                // what is known of pages, over all ranks
  int32_t shift(int64_t layer, const MixedPageState& page) const;
  // Which pages that there are may be narrowed: from `first` on, only if it saves 1 / least_saving of a page's bytes or more,
  // and only so many of them, those that save most.
  struct Narrowing {
    int64_t first, least_saving, most_pages;
  };
  struct Change {
    int64_t layer, page, saved;
  };
  // Only ever narrower than a page is.
  kernels::QuantizedLayout target(int64_t layer, int64_t i, int32_t price, int64_t least_saving) const;
  // Of the pages from narrowing.first on, and which of those that there are change.
  int64_t bytes_at(int32_t price, const Narrowing& narrowing, std::vector<Change>* changes) const;
  int64_t most_narrowed(int64_t made) const;   // pages, when so many are new in each layer
  void fit(int64_t budget);                    // narrows pages, and decides on new ones
  int64_t state_bytes() const;
  void learn_forecast();                       // the truth of what is pending has come
  void forecast();                             // predicts every page, and makes a sample of them pending
  ImportanceForecast::Features features(int64_t layer, int64_t page) const;

  MixedOptions options_;
  CacheShape whole_;                           // with all KV heads of the model: what budgets are for
  std::vector<Layer> layers_;
  std::vector<double> layer_importance_;       // mean of the pages, by layer
  std::vector<NewPage> new_pages_;             // [n_layers, made], at a boundary only
  int64_t first_new_ = 0;
  int64_t tokens_ = 0;                         // of the sequence, at the last boundary
  std::optional<ImportanceForecast> forecast_;
  std::vector<PendingForecast> pending_;
  double forecast_error_ = 0, average_error_ = 0;  // sums of squared errors of log importance
  int64_t forecasts_ = 0;
  PoolCharge state_;
};

}  // namespace smartkv
