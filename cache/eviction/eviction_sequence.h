// Eviction at equal size, different content: every KV head of a layer keeps the same number of tokens, each its own.
//
// A layer holds sinks (the first tokens), then slots for the tokens of highest score, then the dense tail: the exact
// window and up to a page more. At a boundary the tokens that leave the window compete for the slots, one heap per
// KV head: O(log budget) a token. Slots are dense pages, so a smaller cache is a smaller attention and nothing else.
//
// With `packed`, the prune at the prompt's end packs the best three quarters into quantised pages, each KV head its own
// tokens, and these stay; the tokens that follow compete for the slots that are left.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/policy.h"
#include "cache/quantized/quantized_sequence.h"
#include "cache/tailed_sequence.h"

namespace smartkv {

class TokenScorer;

struct EvictionOptions {
  int64_t tokens = 1024;  // kept per layer and KV head at most, all counted
  int64_t sinks = 4;      // of the sequence's first tokens
  int64_t window = 64;    // most recent tokens, exact
  std::optional<kernels::QuantizedLayout> packed = {};  // how tokens that the prompt's prune keeps are packed
  bool exact_prefill = true;  // one bulk prune at the prompt's end; false: from the first token on, in bounded memory
};

// Slots of a KV head: what `tokens` leaves after the window and the page that is being filled, in whole pages.
int64_t eviction_slots(const EvictionOptions& options);

// Throws CacheError when `tokens` has no room for the sinks and the window.
void check_eviction(const EvictionOptions& options);

// Tokens of a KV head that the prune at the end of such a prompt packs.
int64_t eviction_packed(const EvictionOptions& options, int64_t prompt_tokens);

// Bound of what a sequence holds at any moment.
int64_t eviction_max_bytes(const CacheShape& shape, const EvictionOptions& options, int64_t prompt_tokens,
                           int64_t n_tokens);

class EvictionSequence final : public TailedSequence {
 public:
  EvictionSequence(const PolicyContext& context, const EvictionOptions& options,
                   std::shared_ptr<const TokenScorer> scorer, int64_t prompt_tokens);

  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void commit(int64_t n_tokens) override;
  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<EvictionSequence>(*this); }
  CacheStats stats() const override;
  std::vector<int64_t> represented(int64_t layer, int64_t head) const override;

  // Positions of the tokens in a KV head's slots, sinks first unless they are packed. For inspection and tests.
  std::vector<int32_t> slot_positions(int64_t layer, int64_t head) const;

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
    std::vector<std::shared_ptr<const QuantizedPage>> packed;
    DenseLayer kept;
    std::vector<Head> heads;
  };

  void compact() override;
  int64_t compaction_growth(int64_t end) const override;
  int64_t n_probes() const override;
  bool scores_contents() const;
  void score_contents(int64_t end);  // gives the tail's tokens before `end` their scores, where they have none yet
  int64_t packs_at(int64_t boundary) const;  // pages of a layer that it packs
  // Tail tokens [first, end) are packed, as far as `pages` hold them, or take slots or are lost; the first `filled` of those
  // that are not packed find free ones.
  void absorb(int64_t layer, int64_t first, int64_t end, int64_t pages, int64_t filled);
  // Chooses the most valuable of n tokens for the packed pages. Returns the others, in order.
  std::vector<int32_t> choose(Head* head, int64_t first, int64_t n, int64_t packed) const;
  void pack(int64_t layer);
  // Gives slots to some of the tokens first + i. Returns the places that change hands.
  std::vector<uint32_t> place(Head* head, int64_t first, const std::vector<int32_t>& tokens, int64_t filled) const;
  void score_attention(Head* head, int64_t first) const;  // turns the mass into scores; the tail starts at `first`
  int64_t state_bytes() const;

  EvictionOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
  int64_t slots_;
  int64_t packed_ = 0;  // tokens in packed pages, the same in every layer and head
  int64_t kept_ = 0;    // places filled, the same in every layer and head
  int64_t scored_ = 0;  // tokens before it have a score, if contents are scored
  std::vector<Layer> layers_;
};

}  // namespace smartkv
