#include "engine/sampling/row_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace smartkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kLanes = 16;

// The least argument: its power of two has exponent bits 0, so that its exponential comes out as 0.
constexpr float kLowest = -88.0f;

// Branch-free, so that the loop over it vectorises. kLowest <= x <= 0.
inline float exp_nonpositive(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  const float shifted = x * kLog2e + kRound;
  const float k = shifted - kRound;
  const float f = (x - k * kLn2High) - k * kLn2Low;
  float p = 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

[[noreturn]] void throw_bad_logit(std::span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  throw SamplingError("logits: expected finite values, found " + std::string(std::isnan(*bad) ? "NaN" : "+inf") +
                      " for token " + std::to_string(bad - logits.begin()));
}

}  // namespace

float scan_row(std::span<const float> logits, std::vector<float>* block_max) {
  const auto n = static_cast<int64_t>(logits.size());
  block_max->clear();
  float row_max = -kInfinity;
  for (int64_t start = 0; start < n; start += kScanBlock) {
    const int64_t end = std::min(start + kScanBlock, n);
    float lanes[kLanes];
    int32_t bad[kLanes] = {};
    std::fill_n(lanes, kLanes, -kInfinity);
    int64_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        const float x = logits[static_cast<size_t>(i + j)];
        lanes[j] = x > lanes[j] ? x : lanes[j];
        bad[j] |= x < kInfinity ? 0 : 1;
      }
    }
    for (; i < end; ++i) {
      const float x = logits[static_cast<size_t>(i)];
      lanes[0] = x > lanes[0] ? x : lanes[0];
      bad[0] |= x < kInfinity ? 0 : 1;
    }
    if (std::any_of(bad, bad + kLanes, [](int32_t b) { return b != 0; })) throw_bad_logit(logits);
    block_max->push_back(*std::max_element(lanes, lanes + kLanes));
    row_max = std::max(row_max, block_max->back());
  }
  if (row_max == -kInfinity) throw SamplingError("logits: every token is masked (-inf)");
  return row_max;
}

float top_k_floor(std::span<const float> block_max, int64_t k, std::vector<float>* scratch) {
  if (k <= 0 || k > static_cast<int64_t>(block_max.size())) return -kInfinity;
  scratch->assign(block_max.begin(), block_max.end());
  std::nth_element(scratch->begin(), scratch->begin() + (k - 1), scratch->end(), std::greater<>());
  return (*scratch)[static_cast<size_t>(k - 1)];
}

void exp_row(std::span<const float> x, float max, float scale, float* out) {
  const float* in = x.data();
  const size_t n = x.size();
  for (size_t start = 0; start < n; start += kScanBlock) {
    const size_t end = std::min(start + kScanBlock, n);
    // Two loops: in one, the compiler turns the clamp into a branch around the polynomial.
    for (size_t i = start; i < end; ++i) out[i] = std::max((in[i] - max) * scale, kLowest);
    for (size_t i = start; i < end; ++i) out[i] = exp_nonpositive(out[i]);
  }
}

float block_sum(std::span<const float> values) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += values[i + j];
  }
  for (; i < values.size(); ++i) lanes[0] += values[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

double row_sum(std::span<const float> values) {
  double sum = 0;
  for (size_t start = 0; start < values.size(); start += kScanBlock) {
    sum += block_sum(values.subspan(start, std::min(static_cast<size_t>(kScanBlock), values.size() - start)));
  }
  return sum;
}

}  // namespace smartkv
