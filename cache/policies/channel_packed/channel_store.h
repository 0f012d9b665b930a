// A store of quantized pages that drop the unimportant channels of their keys (seed d), with a guard.
//
// A layer starts full: every channel of its keys is quantized. Once the channels of highest worth have stayed the same
// for a while, the layer is packed. The other channels are removed from its pages, so that attention neither reads nor
// multiplies them, and go to a residual of 2 bits that only the guard reads.
//
// From time to time the guard compares, for the last queries, the scores over packed keys with the scores over keys
// completed by the residual. If they are too far apart, the layer is restored from the residual at once, and probing
// starts over.
//
// All KV heads of a layer are packed, or none is. Tensor-parallel ranks tell each other how stable their heads'
// channels are and how far apart the scores, so that all decide alike.
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
#include "cache/stores/page_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

class ChannelStore final : public PageStore {
 public:
  ChannelStore(const PolicyContext& context, const ChannelOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<ChannelStore>(*this); }
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  // Adds:
  //  - packed_layers: share of the layers that are packed;
  //  - channel_backoffs, channel_checks: layers restored, and layers checked;
  //  - channel_overlap, channel_margin_drift, channel_kl: means over layers of the last check.
  void add_details(std::map<std::string, double>* details) const override;

  // Returns the worth of each RoPE pair of a KV head by what was seen so far: f32 [head_dim / 2]. Empty if nothing was
  // seen yet.
  std::vector<float> worth(int64_t layer, int64_t head) const;
  // For inspection and tests. fidelity() is that of the layer's last check.
  bool packed(int64_t layer) const { return layers_[static_cast<size_t>(layer)].packed; }
  const Fidelity& fidelity(int64_t layer) const { return layers_[static_cast<size_t>(layer)].fidelity; }

 private:
  using ChannelOrder = std::shared_ptr<const std::vector<uint8_t>>;
  struct Layer {
    // Decayed means of squares, f32 [n_kv_heads, head_dim].
    std::vector<float> q2, k2;
    bool known = false;  // q2 and k2 are set.
    ProbeQueries queries;
    // [n_kv_heads, head_dim]: channel orders of the last selection. Empty if there was none.
    std::vector<uint8_t> selected;
    int64_t streak = 0;  // Selections in a row that retained enough.
    bool packed = false;
    ChannelOrder order, residual_order;  // Channel orders of packed pages and of their residuals.
    // By page: its residual. Null if the page is not packed.
    std::vector<QuantizedPageRef> residual;
    Fidelity fidelity;                  // Result of the last check.
    std::vector<ChannelOrder> loading;  // By page: its channel order, while pages are loaded.
  };

  void plan(const StageView& view, int64_t made) override;
  QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const override;
  void end_boundary() override;
  ChannelOrder channel_order(int64_t layer, int64_t i) const override {
    return layers_[static_cast<size_t>(layer)].loading[static_cast<size_t>(i)];
  }
  int64_t page_bytes(int64_t i) const override;

  // Returns what the boundary shows of a layer, of which `made` pages are about to be packed.
  ChannelSeen seen_at(const StageView& view, int64_t layer, int64_t made) const;
  // Adds what was seen to the layer's means.
  void learn(const ChannelSeen& seen, Layer* layer) const;
  // Selects a layer's channels by their present worth. Returns the share of the best channels' worth that the previous
  // selection still holds, in the KV head that holds the least. Returns -1 if there was no previous selection.
  double select(int64_t layer);
  // Compares attention over packed keys with attention over keys completed by the residual.
  Fidelity check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const;
  void pack_layer(int64_t layer);  // Packs its full pages.
  // Makes its packed pages full again, and forgets what was learned.
  void restore_layer(int64_t layer);
  // Turns a page's order into that of its residual, in which the quantized channels come first, too.
  ChannelOrder residual_order(const std::vector<uint8_t>& order) const;
  void load_layer(const StageView& view, StateReader* in, Layer* layer) const;
  void count_residuals();
  int64_t state_bytes() const;

  ChannelOptions options_;
  ChannelLayouts layouts_;
  int64_t last_update_ = 0, last_check_ = 0;  // Boundaries of the last selection and the last check.
  int64_t backoffs_ = 0, checks_ = 0;         // Layers.
  int64_t residual_bytes_ = 0;
  std::vector<Layer> layers_;
  PoolCharge state_;
};
using ChannelStoreFactory = StoreFactoryOf<ChannelStore, true, ChannelOptions>;

}  // namespace smartkv
