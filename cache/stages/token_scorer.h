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

// Tokens of a layer whose contents are scored.
struct ScoredTokens {
  int64_t layer = 0;
  const DenseLayer& tokens;
  int64_t first = 0, n = 0;       // positions [first, first + n)
  const float* angles = nullptr;  // RoPE's, cos then sin: f32 [n, 2, head_dim / 2]; given to those that need them
};

class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual std::string name() const = 0;
  // Probe queries before each boundary whose attention the scorer wants; 0: it does not look at attention.
  virtual int64_t n_probes() const { return 0; }

  virtual bool needs_angles() const { return false; }
  // A scorer of contents: scores f32 [n_kv_heads, n], final once given, and the same in whatever runs tokens come. It may
  // use the context's threads.
  virtual void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores) const;
  // A scorer of attention: scores f32 [n], in place of the mass [n] that one KV head's tokens, in order of position,
  // received from the probes since the last boundary; `previous` f32 [n]: scores so far, 0 for new tokens.
  virtual void score_mass(std::span<const float> previous, std::span<float> mass) const;
};

// Scores tokens [first, first + n) of all layers, whose tails are `tail`, by their contents, layer by layer. scores: f32
// [n_kv_heads, n].
void score_layers(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, int64_t first,
                  int64_t n, const std::function<void(int64_t layer, std::span<const float> scores)>& take);

// "none" (nobody gets a slot), "random", "key_norm", "attention", "snapkv" or "learned". `gate`: name of the learned
// scorer's gates, as PolicyContext::load_gate knows it. Throws CacheError.
std::unique_ptr<TokenScorer> make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate);

}  // namespace smartkv
