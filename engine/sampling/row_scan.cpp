#include "engine/sampling/row_scan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kernels/token_weight.h"

namespace smartkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kScanLanes = 16;

[[noreturn]] void throw_first_bad_logit(std::span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  throw_bad_logit(bad - logits.begin(), std::isnan(*bad));
}

}  // namespace

void throw_bad_logit(int64_t token, bool nan) {
  throw LogitError("logits: expected finite values, found " + std::string(nan ? "NaN" : "+inf") + " for token " +
                   std::to_string(token));
}

void throw_all_masked() { throw LogitError("logits: every token is masked (-inf)"); }

float scan_row(std::span<const float> logits, std::vector<float>* block_max) {
  const auto n = static_cast<int64_t>(logits.size());
  block_max->clear();
  float row_max = -kInfinity;
  for (int64_t start = 0; start < n; start += kScanBlock) {
    const int64_t end = std::min(start + kScanBlock, n);
    float lanes[kScanLanes];
    int32_t bad[kScanLanes] = {};
    std::fill_n(lanes, kScanLanes, -kInfinity);
    int64_t i = start;
    for (; i + kScanLanes <= end; i += kScanLanes) {
      for (int64_t j = 0; j < kScanLanes; ++j) {
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
    if (std::any_of(bad, bad + kScanLanes, [](int32_t b) { return b != 0; })) throw_first_bad_logit(logits);
    block_max->push_back(*std::max_element(lanes, lanes + kScanLanes));
    row_max = std::max(row_max, block_max->back());
  }
  if (row_max == -kInfinity) throw_all_masked();
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
    // Two loops, because in a single one the compiler turns the clamp into a branch around the polynomial.
    for (size_t i = start; i < end; ++i) out[i] = weight_exponent(in[i], max, scale);
    for (size_t i = start; i < end; ++i) out[i] = exp_nonpositive(out[i]);
  }
}

float block_sum(std::span<const float> values) {
  float lanes[kScanLanes] = {};
  size_t i = 0;
  for (; i + kScanLanes <= values.size(); i += kScanLanes) {
    for (size_t j = 0; j < kScanLanes; ++j) lanes[j] += values[i + j];
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
