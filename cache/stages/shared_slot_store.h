// A store of the most valuable tokens, with one budget for all layers and KV heads: those whose tokens are worth more keep
// more of them (Ada-KV, Feng et al. 2024, over heads; PyramidKV, Cai et al. 2024, over layers). What all of them hold together
// is what a SlotStore of the same options holds.
//
// Scores must be comparable over layers and heads, so they are those of contents. Where the scorer also knows how much a token
// matters to questions (KVzap, Jegou and Jeblick 2026), on a scale that is each layer's own, a token is worth the greater of two
// ranks: of its score among all candidates, and of its importance among its layer's. At a boundary the tokens
// that leave the window and those that have slots compete: one threshold says how many each KV head should keep, which is rounded to units of
// kPageTokens tokens, and within that each head keeps its best. A layer's dense pages are cut into a unit for each KV head,
// and any head may have any of its layer's units.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/stages/slot_store.h"
#include "cache/stages/token_store.h"

namespace smartkv {

struct SharedSlotOptions {
  EvictionOptions eviction;
  double margin = 0;  // that ranks of importance count less, 0 to 1; 1: they do not count
};

class SharedSlotStoreFactory final : public StoreFactory {
 public:
  SharedSlotStoreFactory(const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer);
  ~SharedSlotStoreFactory() override;
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;

 private:
  SharedSlotOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
};

class SharedSlotStore final : public TokenStore {
 public:
  SharedSlotStore(const PolicyContext& context, const SharedSlotOptions& options, std::shared_ptr<const TokenScorer> scorer);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SharedSlotStore>(*this); }
  int64_t entries(int64_t layer) const override;
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  void see(const StageView& view) override;
  void truncate(const StageView& view, int64_t n) override;
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, LeavingTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreGrowth growth(const StageView& view, int64_t end) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  void add_details(std::map<std::string, double>* details) const override;

  // Positions of the tokens that a KV head keeps, by slot. For inspection and tests.
  const std::vector<int32_t>& slot_positions(int64_t layer, int64_t head) const;

 private:
  struct Scored {
    std::vector<float> score, importance;  // importance: empty where the scorer does not know it
    int64_t bytes() const { return static_cast<int64_t>((score.size() + importance.size()) * sizeof(float)); }
  };
  // Slot s of a KV head is token s % kPageTokens of its unit s / kPageTokens.
  struct Head {
    std::vector<int32_t> units;      // of its layer: unit u is KV head u % n_kv_heads of page u / n_kv_heads
    std::vector<int32_t> positions;  // by slot
    Scored kept;                     // by slot
    Scored tail;                     // of the tail's first tokens, as far as they are known
    // While a boundary is committed: units after it; where not everybody keeps everything, what the kept tokens and then those
    // that leave the tail are worth.
    int64_t units_next = 0;
    std::vector<float> worth;
  };
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context.pool), heads(static_cast<size_t>(context.shape.n_kv_heads)) {}
    DenseLayer kept;
    std::vector<Head> heads;
  };
  // What a KV head keeps changes place: (from, to) in slots, and what it takes from the tail: (position, slot).
  struct Changes {
    std::vector<std::pair<int64_t, int64_t>> moved, taken;
  };

  const CacheShape& shape() const { return context_->shape; }
  int64_t n_heads() const { return shape().n_kv_heads; }
  int64_t budget_pages() const;                    // of all layers
  int64_t pages() const;                           // that all layers hold
  static int64_t whole_pages_of(const Layer& layer, int64_t n_heads);
  int64_t leaving_pages(const StageView& view) const;  // of a layer, at the next boundary
  void score_contents(const StageView& view, int64_t end);
  bool ranks() const;                              // importance counts
  void weigh(int64_t n_leaving);                   // sets `worth` of all heads
  void share_budget(int64_t n_leaving);            // sets units_next of all heads
  Changes choose(Head* head, std::span<const LeavingTokens::Token> tokens) const;
  void copy_slot(Layer* layer, const Head& head, int64_t from, int64_t to) const;
  void write_slot(Layer* layer, const Head& head, int64_t slot, const float* k, const float* v) const;
  void resize(Layer* layer) const;                 // gives every head the units that it is to have
  int64_t state_bytes() const;

  const PolicyContext* context_;
  SharedSlotOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
  int64_t slots_;       // of a KV head on average
  int64_t scored_ = 0;  // tokens before it have a score
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
