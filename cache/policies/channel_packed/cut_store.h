// A store of exact pages that lose the channels of K and of V that do not matter (seed d).
//
// A layer starts full: its pages are the tail's own, bit for bit. The layer is cut once the channels of highest worth
// have stayed the same for a while, and the last queries attend over them much as they do over all. Its pages then keep
// only these channels. The first page, which holds the sinks, stays whole.
//
// Cut channels are lost, so the guard compares with an exact cache, which the engine recomputes when wants_check() asks
// for it (see SequenceCache). If the logits are too far apart, the sequence continues with the exact cache, and probing
// starts over. Otherwise the layers of the exact cache are cut again.
//
// Tensor-parallel ranks tell each other how stable their heads' channels are and how far apart the scores, so that all
// decide alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/channel_packed/channel_guard.h"
#include "cache/policies/channel_packed/cut_options.h"
#include "cache/policies/channel_packed/cut_page.h"

namespace smartkv {

class CutStore final : public TokenStore {
 public:
  CutStore(const PolicyContext& context, const CutOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<CutStore>(*this); }
  int64_t entries(int64_t /*layer*/) const override { return n_pages_ * kernels::kPageTokens; }
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, EvictedTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  int64_t stable_bytes() const override { return page_bytes_; }
  // Adds:
  //  - packed_layers: share of the layers that are cut;
  //  - bits_k, bits_v: bits per value, channels that were cut counting as 0;
  //  - channel_backoffs, channel_checks: layers that went back to exact pages, and checks;
  //  - channel_overlap, channel_margin_drift, channel_kl: means over layers of the last comparison of attention;
  //  - logit_overlap, logit_margin_drift, logit_kl: of the last check.
  void add_details(std::map<std::string, double>* details) const override;
  bool wants_check(const StageView& view) const override;
  void follow(const LogitCheck& check) override;
  bool judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) override;

  // For inspection and tests.
  bool cut(int64_t layer) const { return layers_[static_cast<size_t>(layer)].channels != nullptr; }
  // Return the worth of a KV head's RoPE pairs, f32 [head_dim / 2], and of its channels of V, f32 [head_dim]. Empty if
  // nothing was seen yet.
  std::vector<float> key_worth(int64_t layer, int64_t head) const;
  std::vector<float> value_worth(int64_t layer, int64_t head) const;

 private:
  struct Layer {
    // Decayed means of squares, f32 [n_kv_heads, head_dim]. Empty before the first.
    std::vector<float> q2, k2, v2;
    ProbeQueries queries;
    CutChannels selected;         // The last selection. k_order is empty if there was none.
    int64_t streak = 0;           // Selections in a row that retained enough.
    CutChannelsRef channels;      // Channels of its cut pages. Null: the layer is full.
    std::vector<PageRef> exact;   // By page. Null: the page is cut.
    std::vector<CutPageRef> cut;  // By page. Null: the page is exact.
    Fidelity fidelity;            // Result of the last comparison of attention.
  };
  const CacheShape& shape() const { return context_.shape; }
  // Returns what the boundary shows of a layer.
  ChannelSeen seen_at(const StageView& view, int64_t layer) const;
  // Adds what was seen to the layer's means.
  void learn(const ChannelSeen& seen, Layer* layer) const;
  // Selects a layer's channels by their present worth. Returns the share of the best channels' worth that the previous
  // selection still holds, in the KV head that holds the least. Returns -1 if there was no previous selection.
  double select(int64_t layer);
  Fidelity check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const;
  // Replaces the layer's exact pages, except for the first, by cut ones.
  void cut_layer(Layer* layer) const;
  // Forgets what was learned of channels, after a check that failed.
  void start_over();
  // The worth from a file. Null if the sequence itself decides, as it always does once a check has failed.
  const ChannelWorth* worth() const;
  int64_t cut_layers() const;
  int64_t state_bytes() const;
  void count_pages();
  int64_t shared_bytes() const;

  PolicyContext context_;
  CutOptions options_;
  int64_t n_pages_ = 0;
  int64_t page_bytes_ = 0;  // Sum over all pages.
  // Boundaries: the last one, that of the last selection, and the one since which layers have been cut without a check.
  int64_t boundary_ = 0, last_update_ = 0, unchecked_since_ = 0;
  LogitCheck followed_;  // Nothing is cut up to followed_.tokens.
  std::vector<Layer> layers_;
  PoolCharge state_;
};
using CutStoreFactory = StoreFactoryOf<CutStore, true, CutOptions>;

}  // namespace smartkv
