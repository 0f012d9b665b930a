// A store of pages whose keys lose the channels that do not matter (seed d), with a guard.
//
// A layer starts full: every channel of its keys has codes. Once the worthiest channels have stayed the same for a while it
// is packed: the other channels of its pages have no codes, which attention then neither reads nor multiplies, and go to a
// residual of 2 bits that nobody reads but the guard. From time to time the guard compares, for the last queries, the scores
// over packed keys with those over keys completed by the residual. If they are too far apart, the layer is full again at
// once, out of the residual, and probing starts over.
//
// A layer is packed or not with all of its KV heads. Where ranks hold some of them each, they tell each other how stable their
// heads' channels are and how far apart the scores, and decide alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/channel_packed/channel_guard.h"
#include "cache/policies/channel_packed/channel_options.h"
#include "cache/policies/channel_packed/channel_selection.h"
#include "cache/policies/channel_packed/fidelity.h"
#include "cache/stages/page_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

class ChannelStoreFactory final : public StoreFactory {
 public:
  explicit ChannelStoreFactory(const ChannelOptions& options) : options_(options) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return true; }

 private:
  ChannelOptions options_;
};

class ChannelStore final : public PageStore {
 public:
  ChannelStore(const PolicyContext& context, const ChannelOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<ChannelStore>(*this); }
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  StoreGrowth growth(const StageView& view, int64_t end) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  // packed_layers, a share; channel_backoffs, channel_checks; of the last check, means over layers: channel_overlap,
  // channel_margin_drift, channel_kl.
  void add_details(std::map<std::string, double>* details) const override;

  // Of each RoPE pair of a KV head by what was seen so far: f32 [head_dim / 2]; empty: nothing yet.
  std::vector<float> worth(int64_t layer, int64_t head) const;
  // For inspection and tests; fidelity: of the layer's last check.
  bool packed(int64_t layer) const { return layers_[static_cast<size_t>(layer)].packed; }
  const Fidelity& fidelity(int64_t layer) const { return layers_[static_cast<size_t>(layer)].fidelity; }

 private:
  using ChannelOrder = std::shared_ptr<const std::vector<uint8_t>>;
  struct Layer {
    std::vector<float> q2, k2;  // decayed means of squares, f32 [n_kv_heads, head_dim]
    bool known = false;         // there are means
    ProbeQueries queries;
    std::vector<uint8_t> selected;  // [n_kv_heads, head_dim]: the last selection's channel orders; empty: none
    int64_t streak = 0;             // selections in a row that retained enough
    bool packed = false;
    ChannelOrder order, residual_order;      // of packed pages
    std::vector<QuantizedPageRef> residual;  // by page; null: the page is not packed
    Fidelity fidelity;                       // of the last check
    std::vector<ChannelOrder> loading;       // by page, while pages are loaded
  };

  void plan(const StageView& view, int64_t made) override;
  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override;
  void end_boundary() override;
  ChannelOrder channel_order(int64_t layer, int64_t i) const override {
    return layers_[static_cast<size_t>(layer)].loading[static_cast<size_t>(i)];
  }
  int64_t page_bytes(int64_t i) const override;

  ChannelSeen see(const StageView& view, int64_t layer, int64_t made) const;
  void learn(const ChannelSeen& seen, Layer* layer) const;
  // Selects anew. Returns what the last selection still holds of the best channels' worth, in the KV head that holds the least; -1: there
  // was none.
  double select(int64_t layer);
  Fidelity check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const;
  void pack_layer(int64_t layer);     // its full pages
  void restore_layer(int64_t layer);  // its packed pages
  ChannelOrder residual_order(const std::vector<uint8_t>& order) const;  // what has codes in a residual comes first
  void load_layer(const StageView& view, StateReader* in, Layer* layer) const;
  int64_t residual_bytes() const;
  int64_t state_bytes() const;

  ChannelOptions options_;
  ChannelLayouts layouts_;
  int64_t last_update_ = 0, last_check_ = 0;  // boundaries
  int64_t backoffs_ = 0, checks_ = 0;         // of layers
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
