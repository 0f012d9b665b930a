// A store of exact pages that lose the channels of K and of V that do not matter (seed d).
//
// A layer starts full: its pages are the tail's own, bit for bit. Once the worthiest channels have stayed the same for a while, and the
// last queries attend over them as over all, the layer is cut: its pages keep those channels alone. The first page, which holds the
// sinks, stays whole.
//
// Cut channels are lost, so the guard compares with an exact cache that the engine recomputes when wants_check() asks for it (see
// SequenceCache). If the logits are too far apart, the sequence goes on with that exact cache, and probing starts over. If not, its
// layers are cut again.
//
// Ranks tell each other how stable their heads' channels are and how far apart the scores, and decide alike.
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

class CutStoreFactory final : public StoreFactory {
 public:
  explicit CutStoreFactory(CutOptions options) : options_(std::move(options)) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return true; }

 private:
  CutOptions options_;
};

class CutStore final : public TokenStore {
 public:
  CutStore(const PolicyContext& context, const CutOptions& options);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<CutStore>(*this); }
  int64_t entries(int64_t /*layer*/) const override { return n_pages_ * kernels::kPageTokens; }
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override { return options_.probes; }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, LeavingTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreGrowth growth(const StageView& view, int64_t end) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  int64_t lasting_bytes() const override;
  // packed_layers, a share; bits_k, bits_v: of the channels that are held; channel_backoffs, channel_checks; of the last cut, means over
  // layers: channel_overlap, channel_margin_drift, channel_kl; of the last check: logit_overlap, logit_margin_drift, logit_kl.
  void add_details(std::map<std::string, double>* details) const override;
  bool wants_check(const StageView& view) const override;
  void follow(const LogitCheck& check) override;
  bool judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) override;

  // For inspection and tests.
  bool cut(int64_t layer) const { return layers_[static_cast<size_t>(layer)].channels != nullptr; }
  // Return the worth of a KV head's RoPE pairs, f32 [head_dim / 2], and channels of V, f32 [head_dim]; empty: nothing was seen yet.
  std::vector<float> key_worth(int64_t layer, int64_t head) const;
  std::vector<float> value_worth(int64_t layer, int64_t head) const;

 private:
  struct Layer {
    std::vector<float> q2, k2, v2;  // decayed means of squares, f32 [n_kv_heads, head_dim]; empty: nothing yet
    ProbeQueries queries;
    CutChannels selected;  // the last selection; k_order empty: none
    int64_t streak = 0;    // selections in a row that retained enough
    CutChannelsRef channels;         // of its cut pages; null: the layer is full
    std::vector<PageRef> exact;      // by page; null: the page is cut
    std::vector<CutPageRef> cut;     // by page; null: the page is exact
    Fidelity fidelity;               // of attention, when it was cut last
  };
  const CacheShape& shape() const { return context_.shape; }
  ChannelSeen see(const StageView& view, int64_t layer) const;
  void learn(const ChannelSeen& seen, Layer* layer) const;
  // Selects anew. Returns what the last selection still holds of the best channels' worth, in the KV head that holds the least; -1: there
  // was none.
  double select(int64_t layer);
  Fidelity check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const;
  void cut_layer(Layer* layer) const;
  void start_over();  // after a check that failed
  const ChannelWorth* worth() const;  // null: the sequence itself decides, at the latest once a check has failed
  int64_t cut_layers() const;
  int64_t state_bytes() const;
  int64_t page_bytes() const;  // of all pages
  int64_t shared_bytes() const;

  PolicyContext context_;
  CutOptions options_;
  int64_t n_pages_ = 0;
  // Boundaries: the last one; of the last selection; since which layers have been cut without a check.
  int64_t boundary_ = 0, last_update_ = 0, unchecked_since_ = 0;
  LogitCheck followed_;  // nothing is cut up to followed_.tokens
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
