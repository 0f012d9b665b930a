#include "kernels/experts.h"

#include <algorithm>
#include <cmath>

namespace smartkv::kernels {

void choose_experts(const float* logits, int64_t n, int64_t k, bool normalize, int32_t* experts, float* weights) {
  // The softmax keeps the order of the logits, so they are sorted in its place.
  int64_t chosen = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (chosen == k && !(logits[i] > weights[k - 1])) continue;
    int64_t at = chosen < k ? chosen++ : k - 1;
    for (; at > 0 && logits[i] > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      experts[at] = experts[at - 1];
    }
    weights[at] = logits[i];
    experts[at] = static_cast<int32_t>(i);
  }
  const float largest = weights[0];
  float sum = 0;
  if (normalize) {
    for (int64_t i = 0; i < k; ++i) sum += std::exp(weights[i] - largest);
  } else {
    for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[i] - largest);
  }
  for (int64_t i = 0; i < k; ++i) weights[i] = std::exp(weights[i] - largest) / sum;
}

}  // namespace smartkv::kernels
