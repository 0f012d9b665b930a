// Scorers estimate how much a token matters to the tokens after it. A cache keeps tokens with higher scores longer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cache/dense_layer.h"
#include "cache/policy.h"

namespace smartkv {

// The tokens of a layer to be scored: positions [first, first + n).
struct ScoredTokens {
  int64_t layer = 0;
  int64_t first = 0, n = 0;
};

// A scorer implements one of three groups of functions. The other scoring functions throw CacheError.
//  - If n_probes() > 0: score_mass() scores tokens by the attention that they received.
//  - If looks_at_pages(): score_pages() and finish_scores() have the backend score the contents of pages.
//  - Otherwise score() scores tokens by layer, KV head and position.
class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual std::string name() const = 0;
  // Returns the number of probe queries before each boundary whose attention the scorer needs; 0 if it ignores
  // attention.
  virtual int64_t n_probes() const { return 0; }

  // Whether scores of different layers and KV heads share one scale.
  virtual bool comparable() const { return true; }

  // Whether score_pages() also estimates importance: how strongly the model looks at a token when it repeats the text.
  virtual bool knows_importance() const { return false; }
  // Writes the scores of tokens: f32 [n_kv_heads, n]. A score is final and does not depend on how tokens are divided
  // into calls. `importance` is unused.
  virtual void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* importance) const;
  virtual bool looks_at_pages() const { return false; }
  virtual bool needs_angles() const { return false; }  // whether score_pages() needs TokenScoring::angles
  // score_pages() lets the backend write TokenScoring::scores. If knows_importance() and TokenScoring::importance is
  // not null, the backend also writes this rank's part of the importance, on a scale of its own: f32
  // [context.all_kv_heads(), n]. The importance is the sum over all tensor-parallel ranks. All results are valid after
  // KvBackend::finish(). finish_scores() then turns the backend's scores into those of the scorer, in place: f32 [rows,
  // n], each row of the tokens at positions [first, first + n).
  virtual void score_pages(const PolicyContext& context, std::span<const kernels::TokenScoring> layers) const;
  virtual void finish_scores(int64_t first, int64_t n, std::span<float> scores) const { (void)first, (void)n, (void)scores; }
  // Scores the tokens of one KV head by the attention that they received. `mass`, f32 [n] in order of position: in,
  // the attention from the probe queries since the last boundary; out, the scores. `previous`, f32 [n]: the scores so
  // far, 0 for new tokens.
  virtual void score_mass(std::span<const float> previous, std::span<float> mass) const;
};

// Scores of n consecutive tokens of a layer: f32 [n_kv_heads, n]. `importance`, f32 [context.all_kv_heads(), n], is
// empty unless requested.
struct TokenScores {
  int64_t n = 0;
  std::span<const float> scores, importance;

  std::span<const float> of_head(int64_t head) const { return scores.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n)); }
  std::span<const float> importance_of(int64_t head) const {  // `head` counts the model's KV heads
    return importance.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
  }
};

// Scores the tokens at positions [*scored, end) of all layers and waits for the results. REQUIRES: the scorer does not
// look at attention.
//  - tail: the dense tail of each layer.
//  - take: called on the calling thread with consecutive runs of tokens in order of position, each run for all layers.
//  - scored: the first position of the run during take(), and `end` on return.
//  - importance: whether take() also gets the importance. REQUIRES: scorer.knows_importance().
// Not thread-safe, because KvBackend::score() is not.
void score_tail(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take);

// Creates a scorer: "none" (all scores are 0, so that no token displaces another), "random", "key_norm", "attention",
// "snapkv" or "learned". `gate`: name of the learned scorer's gates, for PolicyContext::load_gate. Throws CacheError.
std::unique_ptr<TokenScorer> make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate);

}  // namespace smartkv
