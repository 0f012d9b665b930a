// A store of summaries (seed c): blocks of tokens become a few entries each, groups of entries fewer ones of the next level,
// like a log-structured merge tree; what stands out stays exact.
//
// Every KV head of every layer has as many entries, each its own, in dense pages with a bias; entries of levels may go to pages
// of codes, each level's in order of age, so that a page is used up as a whole. What is done at a boundary is
// bounded by what was taken, so that none stalls: a block becomes `summaries` entries, and where a level or the whole has too
// many, the oldest group of a level becomes `summaries` entries of the next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/block_summary/summary_head.h"
#include "cache/policies/block_summary/summary_options.h"
#include "cache/stages/token_scorer.h"
#include "cache/stages/token_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

class SummaryStoreFactory final : public StoreFactory {
 public:
  // scorer: for Salience::kGate; null otherwise.
  SummaryStoreFactory(const SummaryOptions& options, std::shared_ptr<const TokenScorer> scorer)
      : options_(options), scorer_(std::move(scorer)) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return options_.adapts() || options_.sheds(); }

 private:
  SummaryOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
};

class SummaryStore final : public TokenStore {
 public:
  SummaryStore(const PolicyContext& context, const SummaryOptions& options, std::shared_ptr<const TokenScorer> scorer);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SummaryStore>(*this); }
  int64_t entries(int64_t layer) const override { return layers_[static_cast<size_t>(layer)].entries; }
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override { return options_.n_probes(); }
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, LeavingTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreGrowth growth(const StageView& view, int64_t end) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  // summary_entries, coded_entries, outlier_entries, pending_entries, summary_levels, level_I_entries; summarized_tokens, the
  // mass of all entries of a KV head, and mass_error, the most by which that is wrong in any: 0; consolidations, watermark_hits.
  void add_details(std::map<std::string, double>* details) const override;

  // For inspection and tests.
  const SummaryHead& head(int64_t layer, int64_t head) const {
    return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  }
  int64_t taken() const { return layers_[0].taken; }  // tokens, by each KV head

 private:
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context.pool), heads(static_cast<size_t>(context.shape.n_kv_heads)) {}
    int64_t dense_entries() const { return entries - n_pages(codes) * kernels::kPageTokens; }

    int64_t entries = 0;
    int64_t taken = 0;
    SummaryWork work;         // since the beginning
    DenseLayer kept;
    LevelPages codes;
    std::vector<float> bias;  // [pages, n_kv_heads, kPageTokens], of the codes' pages and then of the dense ones
    std::vector<SummaryHead> heads;
    ProbeQueries queries;
    // Of the probes seen since the last boundary: how many (times KV heads), and the entropies of their attention, each a share
    // of the greatest, added up.
    int64_t n_entropies = 0;
    double entropies = 0;
    std::vector<float> scores;  // at a boundary: of the tokens that leave the tail, [n_kv_heads, n]
  };

  const CacheShape& shape() const { return context_.shape; }
  int64_t state_bytes() const;
  int64_t most_entries(int64_t layer, int64_t tokens) const;  // once it has taken so many tokens
  void make_codes(const std::vector<size_t>& used, std::vector<HeadCompaction>* compactions, Layer* layer) const;
  void fill_bias(Layer* layer) const;
  void share_entropies();  // by all ranks
  void grow_dense(const StageView& view, int64_t end, StoreGrowth* growth) const;
  void grow_coded(const StageView& view, int64_t end, StoreGrowth* growth) const;
  void load_codes(StateReader* in, Layer* layer) const;
  void load_layer(const StageView& view, StateReader* in, Layer* layer) const;

  PolicyContext context_;
  SummaryOptions options_, plain_ = keep_everything();
  std::shared_ptr<const TokenScorer> scorer_;
  // At a boundary, of each layer: outliers below the least score in the KV head that has fewest of them.
  std::vector<int64_t> shed_;
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
