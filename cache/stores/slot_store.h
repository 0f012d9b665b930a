// A store that keeps the most valuable tokens. Every KV head of a layer keeps the same number of tokens, each its own.
//
// A layer holds sinks (the first tokens) and slots for the tokens with the highest scores. At a boundary the tokens
// evicted from the tail compete for the slots, with one heap per KV head: O(log budget) per token. Slots are dense
// pages, so attention over a smaller cache just has fewer tokens.
//
// With `packed`, the compaction at the prompt's end packs the best three quarters into quantized pages, each KV head
// its own tokens. These tokens stay. The tokens that follow compete for the remaining slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/parameters.h"
#include "cache/quantized_page.h"
#include "cache/stores/token_scorer.h"
#include "cache/stores/token_store.h"

namespace smartkv {

struct EvictionOptions {
  // Most tokens of a layer and KV head, including sinks, window and the page that is being filled.
  int64_t tokens = 1024;
  // Tokens at the beginning of the sequence that are always kept.
  int64_t sinks = 4;
  // Most recent tokens, kept exactly.
  int64_t window = 64;
  // Layout of the quantized pages into which the prompt's compaction packs tokens. Nullopt if nothing is packed.
  std::optional<kernels::QuantizedLayout> packed = {};
  // True: the prompt is compacted once, at its end. False: tokens are evicted while it is computed, in bounded memory.
  bool exact_prefill = true;
  // A store follows in the chain that takes the tokens that lose or do not get a slot.
  bool hand_on = false;

  Boundaries boundaries() const;  // Without the prompt.
};

// Reads the parameters tokens, sinks, window, prefill ("exact" or "streaming") and kept ("dense", or the format of the
// pages into which the prompt's compaction packs tokens). Throws CacheError, also if the options leave no room.
EvictionOptions read_eviction_options(Parameters* parameters, const CacheShape& shape);

// Returns the number of slots of a KV head: what `tokens` leaves after the window and the page that is being filled, in
// whole pages.
int64_t eviction_slots(const EvictionOptions& options);

// Throws CacheError if `tokens` has no room for the sinks and the window.
void check_eviction(const EvictionOptions& options);

// Returns how many tokens of a KV head are packed at the end of a prompt with prompt_tokens tokens.
int64_t eviction_packed(const EvictionOptions& options, int64_t prompt_tokens);

// Returns how many tokens of the tail have a score at a moment to come, when those before position `scored` have one.
// Contents are scored while the prompt is computed, attention at boundaries.
int64_t scored_tail(const TokenScorer& scorer, const StageView& view, const Moment& then, int64_t scored);

class SlotStoreFactory final : public StoreFactory {
 public:
  SlotStoreFactory(const EvictionOptions& options, TokenScorer scorer);
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  bool exchanges() const override;

 private:
  EvictionOptions options_;
  TokenScorer scorer_;
};

class SlotStore final : public TokenStore {
 public:
  SlotStore(const PolicyContext& context, const EvictionOptions& options, TokenScorer scorer);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SlotStore>(*this); }
  int64_t entries(int64_t /*layer*/) const override { return packed_ + kept_; }
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
  int64_t stable_bytes() const override;

  // Positions of the tokens in a KV head's slots: sinks first, unless they are packed. For inspection and tests.
  const std::vector<int32_t>& slot_positions(int64_t layer, int64_t head) const;

 private:
  // The tokens that one KV head keeps. A place is the number of a slot in the layer's dense pages.
  struct Head {
    std::vector<int32_t> packed;     // Positions of the tokens in packed pages.
    std::vector<int32_t> positions;  // Position of the token at each place.
    std::vector<float> scores;       // Score of the token at each place.
    std::vector<uint32_t> heap;      // Places that may be evicted, the least valuable on top.
    std::vector<float> tail_scores;  // Scores of the tail's first tokens, as far as they are known.
    std::vector<float> mass;         // By place, then by tail token: attention received since the last boundary.
  };
  struct Layer {
    explicit Layer(const PolicyContext& context)
        : kept(context.pool), heads(static_cast<size_t>(context.shape.n_kv_heads)) {}
    std::vector<QuantizedPageRef> packed;
    DenseLayer kept;
    std::vector<Head> heads;
  };

  void load_head(const StageView& view, StateReader* in, Head* head) const;
  const CacheShape& shape() const { return context_.shape; }
  bool scores_contents() const { return n_probes() == 0; }
  // Scores the tail's tokens before `end` that have no score yet.
  void score_contents(const StageView& view, int64_t end);
  // Tokens of a KV head that the next boundary packs.
  int64_t packs_at(const StageView& view) const;
  // Empty slots of a KV head that the next boundary fills.
  int64_t fills_at(const StageView& view) const;
  // Chooses the `packed` most valuable of the evicted `tokens` for the packed pages, and returns the others.
  std::vector<EvictedTokens::Token> choose(Head* head, std::span<const EvictedTokens::Token> tokens,
                                           int64_t packed) const;
  void pack(Layer* layer, const DenseLayer& tail) const;
  // Gives slots to some of the tokens; `filled` slots are new. The scores of the tail begin with token `first`. Returns
  // the places that have a new token.
  std::vector<uint32_t> place(Head* head, int64_t first, std::span<const EvictedTokens::Token> tokens,
                              int64_t filled) const;
  // Returns the tokens that are lost: those of `tokens` that have no slot, and those that lost theirs. `before` has the
  // positions of all places before the boundary.
  std::vector<EvictedTokens::Token> lost(const Layer& layer, int64_t head, std::span<const EvictedTokens::Token> tokens,
                                         const std::vector<int32_t>& before, EvictedTokens* leaving) const;
  // Replaces the mass of tokens by its mean over all KV heads of the layer, those of other tensor-parallel ranks
  // included.
  void pool_attention(const StageView& view);
  // Turns the mass of tokens into scores.
  void score_attention(Head* head, int64_t n_tail) const;
  int64_t state_bytes() const;

  PolicyContext context_;
  EvictionOptions options_;
  TokenScorer scorer_;
  int64_t slots_;
  int64_t packed_ = 0;  // Tokens in packed pages, the same in every layer and head.
  int64_t kept_ = 0;    // Places that are filled, the same in every layer and head.
  int64_t scored_ = 0;  // Tokens before this position have a score, if contents are scored.
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
