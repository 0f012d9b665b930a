// Rows of quantised tensors as the integers that they are, so that packing them loses nothing.
#pragma once

#include <cstdint>

#include "engine/weights/tensor_view.h"

namespace smartkv {

// Bits of the integers of a type that is groups of 32 with one scale and minimum: 4 (Q4_0, Q4_1), 8 (Q8_0), else 0.
int group_bits(TensorType type);

// Row `row` as weight = scale q + minimum per group of 32. q: [row_elements]; scale, minimum: [row_elements / 32].
void read_quantized_row(const TensorView& tensor, int64_t row, uint8_t* q, float* scale, float* minimum);

}  // namespace smartkv
