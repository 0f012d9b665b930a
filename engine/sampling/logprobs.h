// Log probabilities of the model's own distribution: the log-softmax of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling/row_scan.h"

namespace smartkv {

// A row's log-softmax, asked for one token or for the most likely ones. Holds scratch; one thread at a time.
class LogprobRow {
 public:
  // `logits`: f32 [vocab_size], unmodified by sampling, and unchanged until the last call. Throws SamplingError.
  void assign(std::span<const float> logits);
  // Of `token`, with the k most likely ones (of equals, the lower id first).
  TokenLogprob of(TokenId token, int32_t k);

 private:
  float logprob(TokenId token) const;

  std::span<const float> logits_;
  double log_sum_ = 0;  // log of the sum of exp(logit)
  std::vector<float> block_max_, scratch_;
  std::vector<TokenId> candidates_;
};

}  // namespace smartkv
