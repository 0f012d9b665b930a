// A store of the most valuable tokens: equal size, different content. Every KV head of a layer keeps the same number of
// tokens, each its own.
//
// A layer holds sinks (the first tokens) and slots for the tokens of highest score. At a boundary the tokens that
// leave the window compete for the slots, one heap per KV head: O(log budget) a token. Slots are dense pages, so a
// smaller cache is a smaller attention and nothing else.
//
// With `packed`, the prune at the prompt's end packs the best three quarters into quantised pages, each KV head its own
// tokens, and these stay; the tokens that follow compete for the slots that are left.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/parameters.h"
#include "cache/quantized_page.h"
#include "cache/stages/token_store.h"

namespace smartkv {

class TokenScorer;

struct EvictionOptions {
  int64_t tokens = 1024;  // kept per layer and KV head at most, all counted
  int64_t sinks = 4;      // of the sequence's first tokens
  int64_t window = 64;    // most recent tokens, exact
  std::optional<kernels::QuantizedLayout> packed = {};  // how tokens that the prompt's prune keeps are packed
  bool exact_prefill = true;  // one bulk prune at the prompt's end; false: from the first token on, in bounded memory
  bool hand_on = false;       // a store follows that takes what loses its slot

  Boundaries boundaries() const;  // without the prompt
};

// The parameters tokens, sinks, window, prefill ("exact" or "streaming"), kept ("dense", or the format of the pages
// that the prompt's prune packs). Throws CacheError, also when the options leave no room.
EvictionOptions read_eviction_options(Parameters* parameters, const CacheShape& shape);

// Slots of a KV head: what `tokens` leaves after the window and the page that is being filled, in whole pages.
int64_t eviction_slots(const EvictionOptions& options);

// Throws CacheError when `tokens` has no room for the sinks and the window.
void check_eviction(const EvictionOptions& options);

// Tokens of a KV head that the prune at the end of such a prompt packs.
int64_t eviction_packed(const EvictionOptions& options, int64_t prompt_tokens);

class SlotStoreFactory final : public StoreFactory {
 public:
  SlotStoreFactory(const EvictionOptions& options, std::unique_ptr<TokenScorer> scorer);
  ~SlotStoreFactory() override;
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override;
  Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const override;
  bool exchanges() const override { return false; }

 private:
  EvictionOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
};

class SlotStore final : public TokenStore {
 public:
  SlotStore(const PolicyContext& context, const EvictionOptions& options, std::shared_ptr<const TokenScorer> scorer);

  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SlotStore>(*this); }
  int64_t entries(int64_t /*layer*/) const override { return packed_ + kept_; }
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
  int64_t lasting_bytes() const override;

  // Positions of the tokens in a KV head's slots, sinks first unless they are packed. For inspection and tests.
  const std::vector<int32_t>& slot_positions(int64_t layer, int64_t head) const;

 private:
  // Places are numbers of slots in the kept pages.
  struct Head {
    std::vector<int32_t> packed;     // positions of the tokens in packed pages
    std::vector<int32_t> positions;  // by place
    std::vector<float> scores;       // by place
    std::vector<uint32_t> heap;      // places that may be evicted, the least valuable on top
    std::vector<float> tail_scores;  // of the tail's first tokens, as far as they are known
    std::vector<float> mass;         // by place, then the tail: attention received since the last boundary
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
  void score_contents(const StageView& view, int64_t end);  // gives the tail's tokens before `end` scores, where they have none
  int64_t packs_at(const StageView& view) const;  // tokens of a KV head that the next boundary packs
  int64_t fills_at(const StageView& view) const;  // slots that the next boundary fills
  // Chooses the most valuable of `tokens`, which leave, for the packed pages. Returns the others.
  std::vector<LeavingTokens::Token> choose(Head* head, std::span<const LeavingTokens::Token> tokens, int64_t packed) const;
  void pack(Layer* layer, const DenseLayer& tail) const;
  // Gives slots to some of the tokens; scores are those of the tail's tokens from `first`. Returns the places that
  // change hands.
  std::vector<uint32_t> place(Head* head, int64_t first, std::span<const LeavingTokens::Token> tokens, int64_t filled) const;
  // Of `tokens`, those without a slot, and those that had one and are in `before`, by place, no more.
  std::vector<LeavingTokens::Token> lost(const Layer& layer, int64_t head, std::span<const LeavingTokens::Token> tokens,
                                         const std::vector<int32_t>& before, LeavingTokens* leaving) const;
  void score_attention(Head* head, int64_t n_tail) const;  // turns the mass into scores
  int64_t state_bytes() const;

  PolicyContext context_;
  EvictionOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
  int64_t slots_;
  int64_t packed_ = 0;  // tokens in packed pages, the same in every layer and head
  int64_t kept_ = 0;    // places filled, the same in every layer and head
  int64_t scored_ = 0;  // tokens before it have a score, if contents are scored
  std::vector<Layer> layers_;
  PoolCharge state_;
};

}  // namespace smartkv
