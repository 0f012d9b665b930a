// What a token is worth to the tokens after it. The higher the score, the longer a cache keeps it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cache/dense_layer.h"
#include "cache/policy.h"

namespace smartkv {

// Tokens of a layer that are scored: positions [first, first + n).
struct ScoredTokens {
  int64_t layer = 0;
  int64_t first = 0, n = 0;
};

class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual std::string name() const = 0;
  // Probe queries before each boundary whose attention the scorer wants; 0: it does not look at attention.
  virtual int64_t n_probes() const { return 0; }

  // Whether scores of different layers and KV heads are on one scale.
  virtual bool comparable() const { return true; }

  // Whether a scorer of contents also knows how much a token matters to somebody who asks about it later.
  virtual bool knows_importance() const { return false; }
  // A scorer of contents, final once given, and the same in whatever runs tokens come: scores f32 [n_kv_heads, n], and of one that
  // knows it, unless null, importance on a scale of its own, f32 [context.all_kv_heads(), n]: what the KV heads that are here add
  // to it. What all ranks add is the importance.
  virtual void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* importance) const;
  // One that looks at what pages hold has the backend score them, in place of that, and turns what comes back, there after
  // KvBackend::finish(), into scores of tokens from position `first` on: f32 [n_kv_heads, n].
  virtual bool looks_at_pages() const { return false; }
  virtual bool needs_angles() const { return false; }
  virtual void score_pages(const PolicyContext& context, std::span<const kernels::TokenScoring> layers) const;
  virtual void finish_scores(int64_t first, int64_t n, std::span<float> scores) const { (void)first, (void)n, (void)scores; }
  // A scorer of attention: scores f32 [n], in place of the mass [n] that one KV head's tokens, in order of position,
  // received from the probes since the last boundary; `previous` f32 [n]: scores so far, 0 for new tokens.
  virtual void score_mass(std::span<const float> previous, std::span<float> mass) const;
};

// What a run of n tokens of a layer is worth, as TokenScorer::score() gives it; importance is empty where nobody asked for it.
struct TokenScores {
  int64_t n = 0;
  std::span<const float> scores, importance;

  std::span<const float> of_head(int64_t head) const { return scores.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n)); }
  std::span<const float> importance_of(int64_t head) const {  // of the model's
    return importance.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
  }
};

// Scores the tokens of all layers, whose tails are `tail`, by their contents, from *scored on up to `end`, and moves *scored
// there: take(layer, scores) gets them in runs, in order of position. importance: it is wanted, too, of a scorer that
// knows it.
void score_tail(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take);

// "none" (nobody gets a slot), "random", "key_norm", "attention", "snapkv" or "learned". `gate`: name of the learned
// scorer's gates, as PolicyContext::load_gate knows it. Throws CacheError.
std::unique_ptr<TokenScorer> make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate);

}  // namespace smartkv
