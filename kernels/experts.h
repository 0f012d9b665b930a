// The choice of experts for a row.
#pragma once

#include <cstdint>

namespace smartkv::kernels {

// Chooses the k experts with the largest softmax(logits [n]), in descending order, equal ones in ascending order of
// their numbers. Writes the numbers to experts [k] and the values of the softmax to weights [k], divided by their sum
// if `normalize` is set. REQUIRES: k is in [1, n].
void choose_experts(const float* logits, int64_t n, int64_t k, bool normalize, int32_t* experts, float* weights);

}  // namespace smartkv::kernels
