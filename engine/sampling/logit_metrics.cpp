#include "engine/sampling/logit_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/sampling/row_scan.h"

namespace smartkv {

void log_softmax(std::span<float> row) {
  std::vector<float> block_max;
  const float max = scan_row(row, &block_max);
  double sum = 0;
  float exps[kScanBlock];
  for (size_t i = 0; i < row.size(); i += kScanBlock) {
    const auto block = row.subspan(i, std::min(row.size() - i, static_cast<size_t>(kScanBlock)));
    exp_row(block, max, 1.0f, exps);
    sum += block_sum({exps, block.size()});
  }
  const auto shift = static_cast<float>(static_cast<double>(max) + std::log(sum));
  for (float& x : row) x -= shift;
}

TopTokens top_tokens(std::span<const float> row) {
  TopTokens best;
  best.fill(-1);
  float floor = -std::numeric_limits<float>::infinity();  // the fifth best so far
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] <= floor) continue;
    size_t place = best.size() - 1;
    for (; place > 0 && (best[place - 1] < 0 || row[i] > row[static_cast<size_t>(best[place - 1])]); --place) {
      best[place] = best[place - 1];
    }
    best[place] = static_cast<int64_t>(i);
    if (best.back() >= 0) floor = row[static_cast<size_t>(best.back())];
  }
  return best;
}

double kl_divergence(std::span<const float> reference, std::span<const float> probabilities,
                     std::span<const float> candidate) {
  double sum = 0;
  float terms[kScanBlock];
  for (size_t i = 0; i < reference.size(); i += kScanBlock) {
    const size_t n = std::min(reference.size() - i, static_cast<size_t>(kScanBlock));
    for (size_t j = 0; j < n; ++j) terms[j] = probabilities[i + j] * (reference[i + j] - candidate[i + j]);
    sum += block_sum({terms, n});
  }
  return sum < 0 ? 0 : sum;  // negative only by rounding; NaN is preserved
}

}  // namespace smartkv
