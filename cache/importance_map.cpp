#include "cache/importance_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/attention_kernels.h"

namespace smartkv {

void ImportanceMap::features(const float* k, const float* v, int64_t head_dim, float* out) {
  const int64_t half = head_dim / 2;
  out = std::copy_n(k, head_dim, out);
  out = std::copy_n(v, head_dim, out);
  for (int64_t f = 0; f < half; ++f) *out++ = k[f] * k[f] + k[f + half] * k[f + half];
  constexpr float kLeast = 1e-12f;
  *out++ = std::log(std::inner_product(v, v + head_dim, v, kLeast));
  *out = 1;
}

float ImportanceMap::importance(const float* k, const float* v, int64_t head_dim) const {
  std::array<float, n_features(kernels::kMaxHeadDim)> values;
  features(k, v, head_dim, values.data());
  const float sum = std::inner_product(weights.begin(), weights.end(), values.begin(), 0.0f);
  return std::isnan(sum) ? std::numeric_limits<float>::lowest() : sum;
}

}  // namespace smartkv
