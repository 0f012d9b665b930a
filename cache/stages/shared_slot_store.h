// A store of the most valuable tokens, with one budget for all layers and KV heads: those whose tokens are worth more
// keep more of them (Ada-KV, Feng et al. 2024, over heads; PyramidKV, Cai et al. 2024, over layers). What all of them
// hold together is what a SlotStore of the same options holds.
//
// Scores must be comparable over layers and heads: those of a gate, or probabilities that probes gave the tokens.
// Where the scorer also knows how much a token matters to questions (KVzap, Jegou and Jeblick 2026), on a scale that
// is each layer's own, a token is worth the greater of two ranks: of its score among all candidates, and of its
// importance among its layer's. At a boundary the tokens that leave the window and those that have slots compete: one
// threshold says how many each KV head should keep, which is rounded to units of kPageTokens tokens, and within that
// each head keeps its best (head_units.h).
//
// With EvictionOptions::packed most tokens are kept in quantised pages of a single KV head. Before dense tokens are
// lost, the heads' best become such units. A unit is packed once, and goes as a whole: where there is no room, if its
// tokens are worth less than those that would be lost for want of the slots that another one frees.
//
// Where ranks hold some of the KV heads each, they tell each other at a boundary what their tokens are worth; then
// each decides for all heads, as one rank would, and does its own part. Ranks come to hold different numbers of bytes:
// rank 0 counts what the one that holds most does.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "cache/quantized_page.h"
#include "cache/stages/head_units.h"
#include "cache/stages/slot_store.h"
#include "cache/stages/token_store.h"

namespace smartkv {

// Units of dense pages that a KV head has at least: for the sinks, and so that none is left without a slot.
int64_t least_units(const EvictionOptions& options);

// What a scorer of attention holds at most: a mass for each candidate, and a score for those of the tail. Tokens of a
// KV head.
int64_t attention_bytes(int64_t heads, int64_t kept, int64_t tail);

struct SharedSlotOptions {
  EvictionOptions eviction;
  double margin = 0;  // that ranks of importance count less, 0 to 1; 1: they do not count

  // Of a KV head on average: slots of dense pages, and tokens in packed units.
  int64_t dense_slots() const;
  int64_t packed_tokens() const { return eviction_slots(eviction) - dense_slots(); }
};

class SharedSlotStoreFactory final : public StoreFactory {
 public:
  SharedSlotStoreFactory(const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer);
  ~SharedSlotStoreFactory() override;
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return true; }

 private:
  SharedSlotOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
};

// A store of slots for policies that let a request choose: shared sizes, or a SlotStore. Throws CacheError where the
// scorer's scores cannot be shared by.
std::unique_ptr<StoreFactory> make_slot_store(bool shared, const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer);

class SharedSlotStore final : public TokenStore {
 public:
  SharedSlotStore(const PolicyContext& context, const SharedSlotOptions& options, std::shared_ptr<const TokenScorer> scorer);

  std::unique_ptr<TokenStore> fork() const override;
  int64_t entries(int64_t layer) const override;
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override;
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
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

  int64_t lasting_bytes() const override;

  // Positions of the tokens that a KV head keeps: by slot, then by packed unit. For inspection and tests.
  std::vector<int32_t> kept_positions(int64_t layer, int64_t head) const;
  // Of a unit, beside its page. ranks: importance counts.
  static int64_t packed_state_bytes(bool ranks);
  static int64_t dense_state_bytes(bool ranks) { return kernels::kPageTokens * slot_bytes(ranks) + kUnitBytes; }
  // Of a token of the tail that is scored by its contents, of all layers, on a rank with so many KV heads of a layer.
  static int64_t scored_bytes(const PolicyContext& context, int64_t heads, bool ranks);
  static int64_t sizes_bytes(const PolicyContext& context);  // of what is known of all KV heads
  // Dense pages of all layers, within `pages` of one rank with all KV heads, on one of several with `heads` of a
  // layer: all units may be its own, and it fills the last page of no layer.
  static int64_t rank_pages(const PolicyContext& context, int64_t heads, int64_t pages);

 private:
  // What a KV head of the model holds, on whichever rank, in units of kPageTokens tokens.
  struct HeadSize {
    int32_t dense = 0, packed = 0;
  };
  struct Scored {
    std::vector<float> score, importance;  // finite; importance: empty where the scorer does not know it
    int64_t bytes() const { return static_cast<int64_t>((score.size() + importance.size()) * sizeof(float)); }
  };
  struct PackedUnit {
    QuantizedPageRef page;
    std::vector<int32_t> positions;  // rising
    Scored tokens;
  };
  struct Head {
    std::vector<int32_t> positions;  // by slot
    Scored kept;                     // by slot
    std::vector<float> tail;         // scores of the tail's first tokens, as far as they are known
    std::vector<float> mass;         // that probes gave since the last boundary: tokens in units, in slots, in the tail
    std::vector<PackedUnit> packed;
    // While a boundary is committed: units of dense pages after it; where not everybody keeps everything, what the
    // dense candidates are worth, which are the tokens with slots and then those that leave the tail; and which of
    // them are packed, in order of position.
    int64_t units_next = 0;
    std::vector<float> worth;
    std::vector<uint32_t> promoted;
  };
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context), heads(static_cast<size_t>(context.shape.n_kv_heads)), tail_importance(static_cast<size_t>(context.all_kv_heads())) {}
    HeadUnits kept;
    std::vector<Head> heads;
    // Of the same tokens in each KV head of the model, as far as it follows from the heads that are here; at a
    // boundary, of those that leave, as it is.
    std::vector<std::vector<float>> tail_importance;
  };
  // Of a KV head of the model, while it is decided what is kept.
  struct Candidates {
    int64_t units = 0;                 // dense ones after the boundary
    std::vector<float> worth;          // of the packed tokens, until units are priced, then of those with slots and those that leave
    std::vector<int32_t> sinks;        // where units are packed: which of the latter two are
    std::vector<double> packed;        // what is lost with each packed unit
    std::vector<bool> goes;            // of them
    std::vector<uint32_t> promoted;    // of the dense ones
  };
  // What a KV head keeps changes place: (from, to) in slots, and what it takes from the tail: (position, slot).
  struct Changes {
    std::vector<std::pair<int64_t, int64_t>> moved, taken;
  };

  static constexpr int64_t kUnitBytes = sizeof(int32_t);
  static int64_t slot_bytes(bool ranks);  // of a token that has a slot: its position and what it is worth
  static float comparable(float x) {      // what does not compare is worth nothing
    constexpr float kLeast = std::numeric_limits<float>::lowest(), kMost = std::numeric_limits<float>::max();
    return std::isnan(x) ? kLeast : std::clamp(x, kLeast, kMost);
  }

  const CacheShape& shape() const { return context_.shape; }
  HeadSize& size_of(int64_t layer, int64_t head) { return sizes_[static_cast<size_t>(layer * context_.all_kv_heads() + head)]; }
  // Of a KV head that is here.
  const std::vector<float>& importance_of(const Layer& layer, int64_t head) const {
    return layer.tail_importance[static_cast<size_t>(context_.first_kv_head() + head)];
  }
  int64_t n_heads() const { return shape().n_kv_heads; }
  int64_t held_heads() const { return shape().n_layers * n_heads(); }  // that are here, of all layers
  int64_t all_heads() const { return shape().n_layers * context_.all_kv_heads(); }
  bool packs() const { return packed_most_ > 0; }
  int64_t packed_page_bytes() const;
  int64_t budget_pages() const;                    // dense, of all layers, of all KV heads of the model
  int64_t pages() const;                           // dense, that all layers hold
  int64_t packed_units() const;                    // that all layers hold
  int64_t shared_packed_units() const;             // that somebody else holds, too
  int64_t leaving_pages(const StageView& view) const;  // of a layer, at the next boundary
  bool scores_contents() const { return n_probes() == 0; }
  void score_contents(const StageView& view, int64_t end);
  // shared_slot_attention.cpp: of a scorer of attention.
  void score_attention(const StageView& view);     // turns the masses into scores
  int64_t attention_held() const;                  // bytes
  void load_attention(const StageView& view, StateReader* in, Head* head) const;
  bool ranks() const;                              // importance counts
  // shared_slot_ranks.cpp: what the ranks tell each other, and what others come to hold.
  void share_importance(int64_t n_leaving);
  // With their scores for worth, and their importance, if it counts. All KV heads of the model, layer by layer.
  std::vector<Candidates> gather_candidates(int64_t tail_first, int64_t n_leaving, std::vector<std::vector<float>>* importance) const;
  struct RankSize {
    int64_t heads = 0, pages = 0, dense = 0, packed = 0;  // of a layer; of dense ones; units
  };
  int64_t rank() const { return context_.heads == nullptr ? 0 : context_.heads->rank(); }
  RankSize rank_size(int64_t rank, int64_t layer) const;
  RankSize rank_size(int64_t rank) const;          // over all layers
  int64_t rank_bytes(int64_t rank) const;          // pages, and the state of what they hold
  int64_t excess_bytes() const;                    // by which another rank's are more than this one's
  StoreGrowth rank_growth(int64_t rank, const StageView& view, int64_t end) const;
  // shared_slot_choice.cpp: what is kept at a boundary.
  std::vector<Candidates> weigh(int64_t tail_first, int64_t n_leaving) const;
  float price_units(std::vector<Candidates>* all) const;
  std::vector<uint32_t> promotable(const Candidates& head) const;
  void promote(std::vector<Candidates>* all, int64_t wanted) const;  // `wanted` units at most
  void share_budget(int64_t tail_first, int64_t n_leaving);  // sets what all heads hold next
  void settle(std::vector<Candidates>* all, int64_t tail_first);  // of the heads that are here
  static int64_t position_of(const Head& head, uint32_t candidate, int64_t tail_first) {
    const size_t held = head.positions.size();
    return candidate < held ? head.positions[candidate] : tail_first + static_cast<int64_t>(candidate - held);
  }
  Changes choose(Head* head, std::span<const LeavingTokens::Token> tokens, const std::vector<float>& importance) const;

  void pack(Layer* layer, int64_t head, const LeavingTokens& leaving) const;
  void save_scored(const Scored& scored, StateWriter* out) const;
  void load_scored(size_t n, StateReader* in, Scored* scored) const;
  void load_packed(const StageView& view, StateReader* in, Head* head) const;
  int64_t state_bytes() const;

  PolicyContext context_;
  SharedSlotOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
  int64_t packed_most_;  // units of all layers and heads
  int64_t scored_ = 0;   // tokens before it have a score
  std::vector<Layer> layers_;
  std::vector<HeadSize> sizes_;  // of the model's KV heads, layer by layer, from the last boundary on
  int64_t excess_ = 0;           // excess_bytes() then, on rank 0, which answers for all
  mutable bool shares_ = false;  // somebody else may hold pages of this store, too
  PoolCharge state_;
};

}  // namespace smartkv
