// Passes over one row of logits, shared by sampling and log probabilities. All loops vectorise, and none sorts the row.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace smartkv {

// No token can be sampled.
class SamplingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The logits cannot be sampled from. The message names the token and the value found.
class LogitError : public SamplingError {
  using SamplingError::SamplingError;
};

[[noreturn]] void throw_bad_logit(int64_t token, bool nan);  // nan: the logit is NaN; otherwise it is +inf
[[noreturn]] void throw_all_masked();

constexpr int64_t kScanBlock = 64;

// Fills `block_max` with the maximum of each block of kScanBlock logits and returns the maximum of the row. A logit of
// -inf means a masked token. Throws LogitError on NaN, on +inf, and if every logit is -inf.
float scan_row(std::span<const float> logits, std::vector<float>* block_max);

// Returns a lower bound of the k-th largest logit that is close to it: the k-th largest block maximum, which k blocks
// reach. Returns -inf if k <= 0 or there are fewer than k blocks. Overwrites `scratch`.
float top_k_floor(std::span<const float> block_max, int64_t k, std::vector<float>* scratch);

// Sets out[i] to token_weight(x[i], max, scale) (kernels/token_weight.h).
void exp_row(std::span<const float> x, float max, float scale, float* out);

// Returns the sum of at most kScanBlock values, added in a fixed order.
float block_sum(std::span<const float> values);
// Returns the sum of a row: the block sums, added in order.
double row_sum(std::span<const float> values);

}  // namespace smartkv
