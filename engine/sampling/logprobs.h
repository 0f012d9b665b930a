// Log probabilities under the model's own distribution: the log-softmax of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling/row_scan.h"

namespace smartkv {

// The log-softmax of one row, for single tokens and for the most likely ones. Holds scratch memory; used by one thread
// at a time.
class LogprobRow {
 public:
  // Sets the row. `logits` is f32 [vocab_size] as the model computed it, without sampling parameters. The caller keeps
  // it unchanged until the last call of of(). Throws SamplingError.
  void assign(std::span<const float> logits);
  // Returns the log probability of `token` and those of the k most likely tokens. Among equally likely tokens the lower
  // id comes first.
  TokenLogprob of(TokenId token, int32_t k);

 private:
  float logprob(TokenId token) const;

  std::span<const float> logits_;
  double log_sum_ = 0;  // log of the sum of exp(logit)
  std::vector<float> block_max_, scratch_;
  std::vector<TokenId> candidates_;
};

}  // namespace smartkv
