// The scores of the tokens of a dense tail, by a scorer of hidden states. They are computed when the tokens are,
// because hidden states are not kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/state_io.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {

// Returns the scorer of hidden states in a chain of stores; null if there is none.
const HiddenScorer* hidden_scorer(std::span<const std::unique_ptr<TokenStore>> stores);

// The scores have the tokens of the tail's pages: [first, ...). Copies hold scores of their own.
class TailScores {
 public:
  // scorer: null if the stores read no such scores; nothing is held then. It outlives this object.
  TailScores(const PolicyContext& context, const HiddenScorer* scorer);

  const HiddenScorer* scorer() const { return scorer_; }
  // Returns the bytes of the scores of n tokens.
  static int64_t bytes_of(const CacheShape& shape, int64_t n);
  int64_t bytes() const { return charge_.bytes(); }

  // Makes room for the tokens before n. Begins a pass.
  void reserve(int64_t n);
  // Scores tokens [position, position + n) by their rows, as in SequenceCache::show_hidden().
  void score(int64_t layer, int64_t position, const void* rows, int64_t n);
  // Ends the pass. Throws CacheError unless score() had each of its n tokens in each layer.
  void check(int64_t n) const;
  // Reads the scores of tokens [position, position + n): f32 [n_kv_heads, n].
  void read(int64_t layer, int64_t position, int64_t n, float* scores) const;
  void truncate(int64_t n);     // forgets the tokens from n on
  void drop_before(int64_t n);  // forgets the tokens before n, a multiple of kPageTokens

  // save() writes the scores of the tokens before n. load() replaces all by those of tokens [first, n). Throws
  // CacheError if they are not in the data.
  void save(int64_t n, StateWriter* out) const;
  void load(int64_t first, int64_t n, StateReader* in);

 private:
  int64_t heads() const { return context_.shape.n_kv_heads; }
  // Changes the room to that of the tokens before n, in whole pages.
  void resize(int64_t n);

  PolicyContext context_;
  const HiddenScorer* scorer_;
  int64_t first_ = 0;
  int64_t scored_ = 0;                      // tokens that score() had in this pass, summed over layers
  std::vector<std::vector<float>> layers_;  // by layer: f32 [tokens, n_kv_heads]
  PoolCharge charge_;
};

}  // namespace smartkv
