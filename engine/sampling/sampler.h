// From a row of logits to the distribution that a token is drawn from, and to the token.
//
// Order of the steps: logit_bias; repetition, then frequency and presence penalty; forbidden tokens (min_tokens, grammar);
// temperature; min_p; top_k; top_p (each of what the step before left, renormalised).
// Sources: repetition_penalty: Keskar et al. 2019 (CTRL); presence and frequency: the OpenAI API reference;
// top_p: Holtzman et al. 2020; min_p: Nguyen et al. 2024.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling/row_scan.h"
#include "engine/sampling/token_history.h"
#include "kernels/token_draw.h"
#include "kernels/token_noise.h"

namespace smartkv {

// Below this temperature, sampling is greedy: quotients of logits would overflow.
constexpr float kGreedyTemperature = 1e-5f;

// Tokens with their weights, ascending by token id. Valid until the Sampler's next call.
class Distribution {
 public:
  std::span<const TokenId> tokens() const { return tokens_; }  // empty: weights() covers the whole vocabulary
  std::span<const float> weights() const { return weights_; }  // not normalised
  double total() const { return total_; }                      // of weights()
  double probability(TokenId token) const;
  TokenId draw(const TokenNoise& noise) const;  // whose noise over weight is the least

 private:
  friend class Sampler;
  std::vector<TokenId> tokens_;
  std::vector<float> weights_;
  double total_ = 0;
};

struct SamplingInput {
  const SamplingParams& params;  // within the ranges that engine.h documents
  const TokenHistory& history;   // read only if needs_history(params)
  std::span<const TokenId> forbidden = {};
  std::span<const uint32_t> allowed = {};  // a bit per token, as Constraint::allowed(); empty: all
};

bool needs_history(const SamplingParams& params);

// What makes a device draw the token that Sampler::sample() draws from [vocabulary] logits, over the same input, which has to
// stay: its logits are for the caller to fill in. params.logit_bias: ascending by token.
kernels::TokenDraw token_draw(const SamplingInput& input, const TokenNoise& noise, int64_t vocabulary);
// What it drew. Throws SamplingError as Sampler::sample() does.
TokenId drawn_token(const kernels::TokenDraw& draw);

// Holds scratch that grows to the vocabulary's size and is then reused. One thread at a time.
class Sampler {
 public:
  // `logits`: f32 [vocab_size]. Throws SamplingError. Greedy: one token; of equal logits the lowest id.
  // Ties at the edge of top_k and top_p go to the lower id, so exactly top_k tokens remain.
  const Distribution& distribution(std::span<const float> logits, const SamplingInput& input);
  // distribution(logits, input).draw(noise), without most of the work where top_k and top_p leave all tokens.
  TokenId sample(std::span<const float> logits, const SamplingInput& input, const TokenNoise& noise);

 private:
  struct Entry {
    float weight;
    TokenId token;
  };
  static bool before(const Entry& a, const Entry& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  }

  // The logits with bias, penalties and forbidden tokens applied: in edited_, unless there is nothing to apply.
  std::span<const float> edited(std::span<const float> logits, const SamplingInput& input);
  TokenId token_at(size_t i) const { return result_.tokens_.empty() ? static_cast<TokenId>(i) : result_.tokens_[i]; }
  void greedy(std::span<const float> logits, float max);
  TokenId race(std::span<const float> logits, float max, const SamplingParams& params, const TokenNoise& noise);
  void gather(std::span<const float> logits, float floor);  // tokens_ and weights_ (logits) of those >= floor
  void keep_top_k(int64_t k);
  void keep_top_p(float top_p);
  void keep_from(const Entry& last);  // drops everything that comes after `last`

  Distribution result_;
  std::vector<float> edited_, block_max_, scratch_;
  std::vector<double> earliest_;  // by block: no token of it arrives before
  std::vector<Entry> entries_;
  std::vector<int64_t> class_mass_;
};

}  // namespace smartkv
