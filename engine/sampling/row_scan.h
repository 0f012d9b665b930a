// Passes over one row of logits that sampling and log probabilities share. All loops vectorise; none sorts the row.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace smartkv {

// No token can be drawn.
class SamplingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Logits that cannot be sampled from; the message names the token and what was found.
class LogitError : public SamplingError {
  using SamplingError::SamplingError;
};

[[noreturn]] void throw_bad_logit(int64_t token, bool nan);  // NaN, or +inf
[[noreturn]] void throw_all_masked();

constexpr int64_t kScanBlock = 64;

// The maximum of each block of kScanBlock logits; returns the row's. -inf is a masked token; NaN, +inf and a row of
// nothing but -inf are LogitErrors.
float scan_row(std::span<const float> logits, std::vector<float>* block_max);

// A value that at least k logits reach, close to the k-th largest of them: the k-th largest block maximum (which each
// of k blocks holds). -inf with fewer than k blocks. `scratch` is overwritten.
float top_k_floor(std::span<const float> block_max, int64_t k, std::vector<float>* scratch);

// out[i] = token_weight(x[i], max, scale) (kernels/token_weight.h).
void exp_row(std::span<const float> x, float max, float scale, float* out);

// Sum of kScanBlock values or fewer, in a fixed order.
float block_sum(std::span<const float> values);
double row_sum(std::span<const float> values);  // of blocks

}  // namespace smartkv
