// A store of summaries (seed c). Blocks of tokens become a few entries each, and groups of entries become fewer entries
// of the next level, as in a log-structured merge tree. Tokens that stand out stay exact.
//
// Every KV head of a layer has the same number of entries, each head its own, in dense pages with a bias. The entries
// of levels may go to quantized pages. Each level fills these in order of age, so that a page is used up as a whole.
//
// The work at a boundary is bounded by the number of tokens taken, so that no boundary stalls. A block becomes
// `summaries` entries. Where a level or the whole has too many entries, the oldest group of a level becomes fewer
// entries of the next level.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/policies/block_summary/summary_head.h"
#include "cache/policies/block_summary/summary_options.h"
#include "cache/stores/token_scorer.h"
#include "cache/stores/token_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

class SummaryStoreFactory final : public StoreFactory {
 public:
  // scorer: for Salience::kGate, of contents or hidden states; absent for any other.
  SummaryStoreFactory(const SummaryOptions& options, std::optional<TokenScorer> scorer)
      : options_(options), scorer_(std::move(scorer)) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  bool exchanges() const override { return options_.adapts() || options_.sheds(); }

 private:
  SummaryOptions options_;
  std::optional<TokenScorer> scorer_;
};

class SummaryStore final : public TokenStore {
 public:
  SummaryStore(const PolicyContext& context, const SummaryOptions& options, std::optional<TokenScorer> scorer);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SummaryStore>(*this); }
  int64_t entries(int64_t layer) const override { return layers_[static_cast<size_t>(layer)].entries; }
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override { return options_.n_probes(); }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  const HiddenScorer* hidden_scorer() const override { return scorer_ ? smartkv::hidden_scorer(*scorer_) : nullptr; }
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, EvictedTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  // Adds, for a KV head of the first compressed layer:
  //  - summary_entries, coded_entries, outlier_entries, pending_entries, level_I_entries: entries, those in quantized
  //    pages being counted in whole pages;
  //  - summary_levels: levels;
  //  - summarized_tokens: tokens taken;
  //  - consolidations, watermark_hits: see SummaryWork.
  // Also adds mass_error: the largest difference, over all KV heads, between the tokens taken and the tokens that
  // entries stand for. It is always 0.
  void add_details(std::map<std::string, double>* details) const override;

  // For inspection and tests.
  const SummaryHead& head(int64_t layer, int64_t head) const {
    return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  }
  int64_t taken() const { return layers_[0].taken; }  // Tokens taken by each KV head.

 private:
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context.pool), heads(static_cast<size_t>(context.shape.n_kv_heads)) {}
    int64_t dense_entries() const { return entries - n_pages(quantized) * kernels::kPageTokens; }

    // Entries of each KV head, and tokens that it took.
    int64_t entries = 0;
    int64_t taken = 0;
    SummaryWork work;  // Since the beginning.
    DenseLayer kept;
    LevelPages quantized;
    // [pages, n_kv_heads, kPageTokens]: quantized pages first, then dense ones.
    std::vector<float> bias;
    std::vector<SummaryHead> heads;
    ProbeQueries queries;
    // Probes seen since the last boundary, times KV heads, and the sum of the entropies of their attention, each as a
    // share of the greatest possible.
    int64_t n_entropies = 0;
    double entropies = 0;
    // At a boundary: scores of the evicted tokens, [n_kv_heads, n].
    std::vector<float> scores;
  };

  const CacheShape& shape() const { return context_.shape; }
  int64_t state_bytes() const;
  // Returns the most entries of each KV head of a layer once it has taken `tokens` tokens.
  int64_t most_entries(int64_t layer, int64_t tokens) const;
  // Releases quantized pages that were used up, and makes new ones.
  void make_pages(const std::vector<size_t>& used, std::vector<HeadCompaction>* compactions, Layer* layer) const;
  void fill_bias(Layer* layer) const;
  void share_entropies();  // Adds them up over all tensor-parallel ranks.
  // summary_bounds.cpp: bounds of a layer's pages with `entries` entries, of what take() adds to them, and of what a
  // worker holds besides.
  struct LayerBytes {
    int64_t pages = 0, take = 0, working = 0;
  };
  LayerBytes layer_at(const StageView& view, const Moment& then, int64_t layer, int64_t entries) const;
  void load_pages(StateReader* in, Layer* layer) const;
  void load_layer(const StageView& view, StateReader* in, Layer* layer) const;

  PolicyContext context_;
  SummaryOptions options_, plain_ = keep_everything();
  std::optional<TokenScorer> scorer_;
  // At a boundary, by layer: outliers below the least score, in the KV head that has the fewest of them.
  std::vector<int64_t> shed_;
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
