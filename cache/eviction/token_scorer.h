// What a token is worth to the tokens after it. The higher the score, the longer a cache keeps it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cache/dense_layer.h"
#include "cache/policy.h"

namespace smartkv {

class TokenScorer {
 public:
  virtual ~TokenScorer() = default;
  virtual std::string name() const = 0;
  // Probe queries before each boundary whose attention the scorer wants; 0: it does not look at attention.
  virtual int64_t n_probes() const { return 0; }

  // A scorer of contents: scores f32 [n_kv_heads, n] of tokens [first, first + n) of `layer`, final once given.
  virtual void score(const PolicyContext& context, int64_t layer, const DenseLayer& tokens, int64_t first, int64_t n,
                     float* scores) const;
  // A scorer of attention: scores f32 [n], in place of the mass [n] that one KV head's tokens, in order of position,
  // received from the probes since the last boundary; `previous` f32 [n]: scores so far, 0 for new tokens.
  virtual void score_mass(std::span<const float> previous, std::span<float> mass) const;
};

// "none" (nobody gets a slot), "random", "key_norm", "attention", "snapkv" or "learned". `gate`: file of the learned
// scorer, "" for the one that ships. Throws CacheError.
std::unique_ptr<TokenScorer> make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate);

}  // namespace smartkv
