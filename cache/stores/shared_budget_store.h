// A store that keeps the most valuable tokens under one budget for all layers and KV heads. Heads with more valuable
// tokens keep more of them (Ada-KV, Feng et al. 2024, over heads; PyramidKV, Cai et al. 2024, over layers). Together
// they keep as many tokens as a SlotStore with the same options.
//
// Scores must be comparable over layers and heads: scores of a gate, or probabilities that probes gave the tokens. Some
// scorers also know a token's importance: how much it matters to later questions (KVzap, Jegou and Jeblick 2026).
// Importance has a scale of its own in each layer. A token's worth is then the greater of two percentiles: that of its
// score among all candidates, and that of its importance among the candidates of its layer.
//
// At a boundary the tokens evicted from the tail compete with the tokens that have slots.
//  - One threshold of worth says how many tokens each KV head should keep.
//  - That number is rounded to units of kPageTokens tokens (head_units.h).
//  - Within its units each head keeps its best tokens.
//
// With EvictionOptions::packed most tokens are kept in packed units: quantized pages of a single KV head. Before dense
// tokens are lost, the best tokens of the heads become packed units, which frees their slots for others. A unit is
// packed once and dropped as a whole. If there is no room for another unit, the least valuable one is dropped, provided
// that its tokens are worth less than the tokens that the freed slots save.
//
// Tensor-parallel ranks tell each other at a boundary what their tokens are worth. Each of them then decides for all KV
// heads, as a single process would, and carries out its own part. They come to hold different numbers of bytes;
// tensor-parallel rank 0 counts the bytes of the one that holds most.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "cache/quantized_page.h"
#include "cache/stores/head_units.h"
#include "cache/stores/slot_store.h"
#include "cache/stores/token_store.h"

namespace smartkv {

// Returns how many units of dense pages a KV head has at least: enough for the sinks, and never zero.
int64_t least_units(const EvictionOptions& options);

struct SharedBudgetOptions {
  EvictionOptions eviction;
  // Subtracted from percentiles of importance, 0 to 1. 1: importance does not count.
  double margin = 0;

  // Averages over KV heads: slots in dense pages, and tokens in packed units.
  int64_t dense_slots() const;
  int64_t packed_tokens() const { return eviction_slots(eviction) - dense_slots(); }
};

// Makes the factory of a SharedBudgetStore or, if `shared` is false, of a SlotStore. Throws CacheError if `shared` is
// true and the scorer's scores are not comparable.
std::unique_ptr<StoreFactory> make_slot_store(bool shared, const SharedBudgetOptions& options, TokenScorer scorer);

class SharedBudgetStore final : public TokenStore {
 public:
  SharedBudgetStore(const PolicyContext& context, const SharedBudgetOptions& options, TokenScorer scorer);

  std::unique_ptr<TokenStore> fork() const override;
  int64_t entries(int64_t layer) const override;
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  int64_t n_probes() const override;
  void observe(const StageView& view, int64_t layer, const StoreProbe& probe) override;
  const HiddenScorer* hidden_scorer() const override { return smartkv::hidden_scorer(scorer_); }
  void see(const StageView& view) override;
  void truncate(const StageView& view, int64_t n) override;
  void prepare(const StageView& view) override;
  void take(const StageView& view, int64_t layer, EvictedTokens* tokens) override;
  void finish(const StageView& view) override;
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  void add_details(std::map<std::string, double>* details) const override;

  int64_t stable_bytes() const override;

  // Positions of the tokens that a KV head keeps: by slot, then by packed unit. For inspection and tests.
  std::vector<int32_t> kept_positions(int64_t layer, int64_t head) const;

 private:
  // Size of a KV head of the model, on whichever tensor-parallel rank it is, in units of kPageTokens tokens.
  struct HeadSize {
    int32_t dense = 0, packed = 0;
  };
  struct Scored {
    std::vector<float> score, importance;  // Finite. importance is empty if it does not count.
    int64_t bytes() const { return static_cast<int64_t>((score.size() + importance.size()) * sizeof(float)); }
  };
  struct PackedUnit {
    QuantizedPageRef page;
    std::vector<int32_t> positions;  // In rising order.
    Scored tokens;
  };
  struct Head {
    std::vector<int32_t> positions;  // By slot.
    Scored kept;                     // By slot.
    // Scores of the tail's first tokens, as far as they are known.
    std::vector<float> tail;
    // Attention that probes gave since the last boundary: to tokens in packed units, in slots, then in the tail.
    std::vector<float> mass;
    std::vector<PackedUnit> packed;
    // While a boundary is committed:
    //  - units_next: units of dense pages after it.
    //  - worth: worth of the dense candidates, which are the tokens with slots and then the tokens evicted from the
    //    tail. Empty if all candidates are kept.
    //  - promoted: dense candidates that become packed units, in order of position.
    int64_t units_next = 0;
    std::vector<float> worth;
    std::vector<uint32_t> promoted;
  };
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context),
          heads(static_cast<size_t>(context.shape.n_kv_heads)),
          tail_importance(static_cast<size_t>(context.all_kv_heads())) {}
    HeadUnits kept;
    std::vector<Head> heads;
    // Importance of the same tail tokens, for each KV head of the model. It is only the part that follows from this
    // process's KV heads; at a boundary, share_importance() completes it for the evicted tokens.
    std::vector<std::vector<float>> tail_importance;
  };
  // The candidates of a KV head of the model, while it is decided which are kept.
  struct Candidates {
    // Dense units after the boundary. At first there is room for all dense candidates; each decision lowers it.
    int64_t units = 0;
    // Worth of the candidates: tokens of packed units until price_units() removes them, then tokens with slots, then
    // evicted tokens.
    std::vector<float> worth;
    // Dense candidates that are sinks. Only needed if units are packed.
    std::vector<int32_t> sinks;
    // By packed unit: the worth that is lost with it.
    std::vector<double> packed;
    // By packed unit: it is dropped.
    std::vector<bool> goes;
    // Dense candidates that become packed units.
    std::vector<uint32_t> promoted;
  };
  // Changes of a KV head's slots: tokens that move (from slot, to slot), and tokens taken from the tail (position,
  // slot).
  struct Changes {
    std::vector<std::pair<int64_t, int64_t>> moved, taken;
  };

  static constexpr int64_t kUnitBytes = sizeof(int32_t);
  // Bytes of state of a token that has a slot: its position and its scores.
  int64_t slot_bytes() const {
    return static_cast<int64_t>(sizeof(int32_t) + (by_importance() ? 2 : 1) * sizeof(float));
  }
  // Bytes of state per packed unit and per dense unit, pages not included.
  int64_t packed_state_bytes() const {
    return static_cast<int64_t>(sizeof(PackedUnit)) + kernels::kPageTokens * slot_bytes();
  }
  int64_t dense_state_bytes() const { return kernels::kPageTokens * slot_bytes() + kUnitBytes; }
  // Makes a score finite. NaN becomes the least value.
  static float comparable(float x) {
    constexpr float kLeast = std::numeric_limits<float>::lowest(), kMost = std::numeric_limits<float>::max();
    return std::isnan(x) ? kLeast : std::clamp(x, kLeast, kMost);
  }

  const CacheShape& shape() const { return context_.shape; }
  HeadSize& size_of(int64_t layer, int64_t head) {
    return sizes_[static_cast<size_t>(layer * context_.all_kv_heads() + head)];
  }
  // Importance of the tail's tokens in one of this process's KV heads.
  const std::vector<float>& importance_of(const Layer& layer, int64_t head) const {
    return layer.tail_importance[static_cast<size_t>(context_.first_kv_head() + head)];
  }
  int64_t n_heads() const { return shape().n_kv_heads; }
  int64_t held_heads() const { return shape().n_layers * n_heads(); }  // KV heads of this process, in all layers.
  int64_t all_heads() const { return shape().n_layers * context_.all_kv_heads(); }
  bool packs() const { return packed_most_ > 0; }
  int64_t packed_page_bytes() const;
  // Dense pages over all layers that a single process with all KV heads may hold.
  int64_t budget_pages() const;
  // Dense pages that all layers hold.
  int64_t pages() const;
  // Packed units that all layers hold.
  int64_t packed_units() const;
  // Packed units that also have another holder.
  int64_t shared_packed_units() const;
  bool scores_contents() const { return n_probes() == 0; }
  void score_contents(const StageView& view, int64_t end);
  // shared_budget_attention.cpp, for scorers of attention.
  // Turns the masses into scores.
  void score_attention(const StageView& view);
  void load_attention(const StageView& view, StateReader* in, Head* head) const;
  // Whether importance counts.
  bool by_importance() const;
  // shared_slot_ranks.cpp: exchange between tensor-parallel ranks, and bounds of what each comes to hold.
  void share_importance(int64_t n_leaving);
  // Returns the candidates of all KV heads of the model, layer by layer, with their scores as worth. Also sets
  // *importance if it counts.
  std::vector<Candidates> gather_candidates(int64_t tail_first, int64_t n_leaving,
                                            std::vector<std::vector<float>>* importance) const;
  // Contents of a tensor-parallel rank: KV heads of a layer, dense pages, dense units and packed units.
  struct RankSize {
    int64_t heads = 0, pages = 0, dense = 0, packed = 0;
    int64_t made = 0;  // packed units made to come to this size, at most
  };
  // This process's tensor-parallel rank.
  int64_t rank() const { return context_.heads == nullptr ? 0 : context_.heads->rank(); }
  RankSize rank_size(int64_t rank, int64_t layer) const;
  RankSize rank_size(int64_t rank) const;  // Over all layers.
  // Returns the most that a rank holds at a moment to come.
  RankSize rank_size_at(int64_t rank, const StageView& view, const Moment& then) const;
  int64_t page_bytes(const RankSize& size) const { return size.heads * (context_.pool->page_bytes() / n_heads()); }
  int64_t pages_bytes(const RankSize& size) const {
    return size.pages * page_bytes(size) + size.packed * packed_page_bytes();
  }
  int64_t units_bytes(const RankSize& size) const {
    return size.dense * dense_state_bytes() + size.packed * packed_state_bytes();
  }
  // Returns the bytes of a rank's scores and masses of attention.
  int64_t tail_bytes(const RankSize& size, const StageView& view, const Moment& then) const;
  // Bytes by which the tensor-parallel rank that holds most exceeds this one.
  int64_t excess_bytes() const;
  // shared_slot_choice.cpp: the choice at a boundary.
  // Returns the candidates of all KV heads with their worth.
  std::vector<Candidates> weigh(int64_t tail_first, int64_t n_leaving) const;
  // Removes the tokens of packed units from `worth`, and sets what is lost with each unit. Returns the threshold.
  float price_units(std::vector<Candidates>* all) const;
  // Returns a head's dense candidates except for sinks, the most valuable first.
  std::vector<uint32_t> promotable(const Candidates& head) const;
  // Makes at most `wanted` packed units of the best dense candidates, and drops packed units to make room.
  void promote(std::vector<Candidates>* all, int64_t wanted) const;
  // Decides how many units every KV head of the model holds after the boundary.
  void share_budget(int64_t tail_first, int64_t n_leaving);
  // Hands the decision over to sizes_ and to the KV heads of this process.
  void settle(std::vector<Candidates>* all, int64_t tail_first);
  // Returns the position of a dense candidate.
  static int64_t position_of(const Head& head, uint32_t candidate, int64_t tail_first) {
    const size_t held = head.positions.size();
    return candidate < held ? head.positions[candidate] : tail_first + static_cast<int64_t>(candidate - held);
  }
  // Chooses which of a head's dense candidates get its slots.
  Changes choose(Head* head, std::span<const EvictedTokens::Token> tokens, const std::vector<float>& importance) const;

  // Makes packed units of a head's promoted candidates.
  void pack(Layer* layer, int64_t head, const EvictedTokens& leaving) const;
  void load_scored(size_t n, StateReader* in, Scored* scored) const;
  void load_packed(const StageView& view, StateReader* in, Head* head) const;
  int64_t state_bytes() const;

  PolicyContext context_;
  SharedBudgetOptions options_;
  TokenScorer scorer_;
  int64_t packed_most_;  // Most packed units, over all layers and all KV heads of the model.
  int64_t scored_ = 0;   // Tokens before this position have a score, if contents are scored.
  std::vector<Layer> layers_;
  // Sizes of the model's KV heads since the last boundary, layer by layer.
  std::vector<HeadSize> sizes_;
  // excess_bytes() at the last boundary. 0 except on tensor-parallel rank 0, which answers for all.
  int64_t excess_ = 0;
  // Another store may share pages of this one.
  mutable bool shares_ = false;
  PoolCharge state_;
};
using SharedBudgetStoreFactory = StoreFactoryOf<SharedBudgetStore, true, SharedBudgetOptions, TokenScorer>;

}  // namespace smartkv
