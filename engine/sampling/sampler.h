// Turns a row of logits into a distribution, and samples a token from it.
//
// The steps in order: logit_bias; repetition penalty, then frequency and presence penalty; forbidden tokens
// (min_tokens, grammar); temperature; min_p; top_k; top_p. Each of the last three applies to the renormalised tokens
// that remain.
//
// Sources:
//  - repetition_penalty: Keskar et al. 2019 (CTRL)
//  - presence and frequency penalty: the OpenAI API reference
//  - top_p: Holtzman et al. 2020
//  - min_p: Nguyen et al. 2024
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling/row_scan.h"
#include "engine/sampling/token_history.h"
#include "kernels/device_sampler.h"
#include "kernels/token_noise.h"

namespace smartkv {

// Below this temperature sampling is greedy, because dividing logits by it would overflow.
constexpr float kGreedyTemperature = 1e-5f;

// Tokens with their weights, ascending by token id. The Sampler owns it; it is valid until the Sampler's next call.
class Distribution {
 public:
  std::span<const TokenId> tokens() const { return tokens_; }  // empty if weights() covers the whole vocabulary
  std::span<const float> weights() const { return weights_; }  // not normalised
  double total() const { return total_; }                      // sum of weights()
  double probability(TokenId token) const;
  // Returns the token with the least noise divided by weight. The lower id wins a tie.
  TokenId draw(const TokenNoise& noise) const;

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
  std::span<const uint32_t> allowed = {};  // one bit per token, like Constraint::allowed(); empty if all are allowed
};

// Returns whether the parameters include a penalty, which depends on the tokens seen so far.
bool needs_history(const SamplingParams& params);

// Returns a job for the device sampler. The device then samples the token that Sampler::sample() samples from the same
// input and the same [vocabulary] logits. The job refers to `input`, which must outlive it; the caller sets the job's
// `logits`. REQUIRES: params.logit_bias is ascending by token.
kernels::DeviceSample device_sample(const SamplingInput& input, const TokenNoise& noise, int64_t vocabulary);
// Returns the token that the device sampled. Throws SamplingError as Sampler::sample() does.
TokenId drawn_token(const kernels::DeviceSample& draw);

// The host's sampler. Holds scratch memory that grows to the size of the vocabulary and is reused. Used by one thread
// at a time.
class Sampler {
 public:
  // Returns the distribution of the next token. `logits` is f32 [vocab_size]. Greedy sampling yields one token, of
  // equal logits the lowest id. Ties at the edge of top_k and top_p go to the lower id, so exactly top_k tokens remain.
  // Throws SamplingError.
  const Distribution& distribution(std::span<const float> logits, const SamplingInput& input);
  // Returns distribution(logits, input).draw(noise), but skips most of the work if top_k and top_p keep all tokens.
  TokenId sample(std::span<const float> logits, const SamplingInput& input, const TokenNoise& noise);

 private:
  struct Entry {
    float weight;
    TokenId token;
  };
  static bool before(const Entry& a, const Entry& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  }

  // Returns the logits with bias, penalties and forbidden tokens applied. They are in edited_ unless nothing applies.
  std::span<const float> edited(std::span<const float> logits, const SamplingInput& input);
  TokenId token_at(size_t i) const { return result_.tokens_.empty() ? static_cast<TokenId>(i) : result_.tokens_[i]; }
  void greedy(std::span<const float> logits, float max);
  TokenId race(std::span<const float> logits, float max, const SamplingParams& params, const TokenNoise& noise);
  // Collects the tokens with logits >= floor in result_.tokens_, and their logits in scratch_.
  void gather(std::span<const float> logits, float floor);
  void keep_top_k(int64_t k);
  void keep_top_p(float top_p);
  void keep_from(const Entry& last);  // removes all tokens that before() orders after `last`

  Distribution result_;
  std::vector<float> edited_, block_max_, scratch_;
  std::vector<double> earliest_;  // by block: a lower bound of the arrival times of its tokens
  std::vector<Entry> entries_;
  std::vector<int64_t> class_mass_;
};

}  // namespace smartkv
