// Scorers estimate how much a token matters to the tokens after it. A cache keeps tokens with higher scores longer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <variant>

#include "cache/policy.h"
#include "cache/stores/token_scoring.h"
#include "cache/stores/token_store.h"

namespace smartkv {

// The tokens of a layer to be scored: positions [first, first + n).
struct ScoredTokens {
  int64_t layer = 0;
  int64_t first = 0, n = 0;
};

// Properties that all kinds of scorers have.
class ScorerTraits {
 public:
  virtual ~ScorerTraits() = default;
  virtual std::string_view name() const = 0;
  // Whether scores of different layers and KV heads can be compared with each other.
  virtual bool comparable() const { return true; }
  // Whether score() also writes importance: how strongly the model attends to a token when it repeats the text.
  virtual bool knows_importance() const { return false; }
  // Whether tokens of the same KV head differ in score.
  virtual bool ranks_tokens() const { return true; }
};

// Computes scores on the host, from layer, KV head and position.
class ContentScorer : public ScorerTraits {
 public:
  // Writes the scores of tokens: f32 [n_kv_heads, n]. A score is final and does not depend on how tokens are divided
  // into calls. If `importance` is not null, also writes this tensor-parallel rank's part of it: f32
  // [context.all_kv_heads(), n]. The sum over all ranks is the importance. It is not on the scale of the scores.
  virtual void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores,
                     float* importance) const = 0;
};

// Has the backend compute scores from the contents of pages.
class PageScorer : public ScorerTraits {
 public:
  virtual bool needs_angles() const { return false; }  // whether score() needs TokenScoring::angles
  // Lets the backend write TokenScoring::scores and, unless it is null, TokenScoring::importance. The results are valid
  // after PageOps::finish().
  virtual void score(const PolicyContext& context, std::span<const TokenScoring> layers) const = 0;
  // Turns the backend's scores into those of this scorer, in place: f32 [rows, n]. There is a row for each layer and KV
  // head, with the tokens at positions [first, first + n).
  virtual void finish(int64_t first, int64_t n, std::span<float> scores) const { (void)first, (void)n, (void)scores; }
};

// Scores tokens by their hidden states, on the host, while the model computes them.
class HiddenScorer : public ScorerTraits {
 public:
  // Writes final scores of n tokens of a layer: f32 [n, n_kv_heads]. A token's score depends on its own row only. rows:
  // as in SequenceCache::show_hidden().
  virtual void score(const PolicyContext& context, int64_t layer, const void* rows, int64_t n, float* scores) const = 0;
};

// Scores tokens by the attention that they receive from probe queries. Scores of all layers and KV heads share one
// scale.
class AttentionScorer : public ScorerTraits {
 public:
  // Returns n: the last n queries before each boundary are probes.
  virtual int64_t n_probes() const = 0;
  // Whether attention is averaged over the KV heads of a layer before score(). They then all keep the same tokens.
  virtual bool pools_heads() const { return false; }
  // Scores the tokens of one KV head, in order of position.
  //  - previous: their scores at the last boundary, f32 [n]; 0 for new tokens.
  //  - mass: the attention from the probe queries since that boundary, f32 [n]. Receives the scores.
  virtual void score(std::span<const float> previous, std::span<float> mass) const = 0;
};

using TokenScorer = std::variant<std::shared_ptr<const ContentScorer>, std::shared_ptr<const PageScorer>,
                                 std::shared_ptr<const HiddenScorer>, std::shared_ptr<const AttentionScorer>>;

std::string_view name_of(const TokenScorer& scorer);
bool comparable(const TokenScorer& scorer);
bool knows_importance(const TokenScorer& scorer);
bool ranks_tokens(const TokenScorer& scorer);
const HiddenScorer* hidden_scorer(const TokenScorer& scorer);        // null for another kind
const AttentionScorer* attention_scorer(const TokenScorer& scorer);  // null for another kind
int64_t n_probes(const TokenScorer& scorer);                         // 0 unless it scores attention
bool pools_heads(const TokenScorer& scorer);                         // false unless it scores attention

// Scores of n consecutive tokens of a layer: f32 [n_kv_heads, n]. `importance` is empty unless requested: f32
// [context.all_kv_heads(), n], this rank's part.
struct TokenScores {
  int64_t n = 0;
  std::span<const float> scores, importance;

  std::span<const float> of_head(int64_t head) const {
    return scores.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
  }
  std::span<const float> importance_of(int64_t head) const {  // `head` counts the model's KV heads
    return importance.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
  }
};

// Scores the tokens at positions [*scored, end) of all layers and waits for the results. REQUIRES: not an
// AttentionScorer.
//  - view: the sequence. Its tail holds the tokens.
//  - importance: whether take() also gets the importance. REQUIRES: knows_importance(scorer).
//  - take: receives the scores on the calling thread, in runs of consecutive tokens, each run layer by layer. Meanwhile
//    *scored is the position of the run's first token; it is `end` on return.
// Not thread-safe, because a scorer may use the thread pool.
void score_tail(const PolicyContext& context, const TokenScorer& scorer, const StageView& view, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take);

}  // namespace smartkv
