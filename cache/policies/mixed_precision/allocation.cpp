#include "cache/policies/mixed_precision/allocation.h"

#include <algorithm>
#include <cmath>

namespace smartkv {

LogSensitivity log_sensitivity(double s) {
  constexpr double kLeast = 1e-30;
  return static_cast<LogSensitivity>(std::clamp(std::round(256.0 * std::log2(std::max(s, kLeast))), -32768.0, 32767.0));
}

size_t width_index(int32_t sensitivity, int32_t price) {
  // Thresholds: -256 log2 of the error saved per bit, at S = 1, by going from the next narrower width to this one.
  constexpr std::array<int32_t, 4> kThresholds = {
      2517,  // 8 bits: (1 / 15^2 - 1 / 255^2) / 4
      1528,  // 4 bits: 1 / 7^2 - 1 / 15^2
      886,   // 3 bits: 1 / 3^2 - 1 / 7^2
      178,   // 2 bits: (3 / 2 - 1 / 3^2) / 2.25, with the column's scale
  };
  for (size_t i = 0; i < kThresholds.size(); ++i) {
    if (sensitivity - kThresholds[i] >= price) return i;
  }
  return kThresholds.size();
}

kernels::CodeRuns runs_at(std::span<const LogSensitivity> quads, int32_t shift, int32_t price, int64_t least_bits) {
  kernels::CodeRuns runs;
  for (const LogSensitivity s : quads) {
    const size_t width = width_index(s + shift, price);
    if (width < runs.quads.size()) {
      ++runs.quads[width];
    } else {
      ++(least_bits == 0 ? runs.dropped : runs.quads.back());
    }
  }
  return runs;
}

kernels::CodeRuns narrower(const kernels::CodeRuns& a, const kernels::CodeRuns& b) {
  kernels::CodeRuns result;
  int64_t wide_a = 0, wide_b = 0, taken = 0;  // Quads at this width or wider.
  for (size_t i = 0; i < result.quads.size(); ++i) {
    wide_a += a.quads[i];
    wide_b += b.quads[i];
    result.quads[i] = static_cast<uint8_t>(std::min(wide_a, wide_b) - taken);
    taken = std::min(wide_a, wide_b);
  }
  result.dropped = static_cast<uint8_t>(a.n_quads() - taken);
  return result;
}

}  // namespace smartkv
