// Weights that files hold as integers in groups of 32 along a row: Q4_0, Q4_1, Q8_0, Q4_K with scales and minimums rounded to
// f16, and GPTQ's and AWQ's, whose groups are 32 or a multiple of it. And in blocks of coded groups, which Q4_K and Q6_K are
// without rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/tensor_view.h"
#include "kernels/linear.h"

namespace smartkv {

// weight = scale q + minimum, for each group of 32.
struct QuantizedRow {
  std::vector<uint8_t> q;             // [row_elements]
  std::vector<float> scale, minimum;  // [row_elements / 32]
  void resize(int64_t elements);
};

// Returns whether the tensor holds F32, F16 or BF16, and so is not quantized.
bool is_float(const TensorView& tensor);

// Bits of the integers of a tensor whose groups of 32 have a scale and a minimum each, 4 or 8; 0: it has none.
int group_bits(const TensorView& tensor);

// Whether each minimum of such a tensor is that of centred integers of `bits` (4 or 8) bits, or can be by a shift of the integers.
bool has_centred_groups(const TensorView& tensor, int bits);

// Throws std::invalid_argument for a row that is not, or a tensor without such groups.
void read_quantized_row(const TensorView& tensor, int64_t row, QuantizedRow& out);

// Bits of the integers of a tensor of coded groups, 4 or 6; 0: it has none.
int coded_bits(const TensorView& tensor);

// A row of such a tensor. Throws std::invalid_argument as read_quantized_row().
void read_coded_row(const TensorView& tensor, int64_t row, std::vector<kernels::CodedBlock>& out);

// The blocks of Q4_1 or Q8_0 that stand for a row, from `out` on; returns their end. Throws ModelError naming the tensor where
// a minimum of 8-bit integers is not -128 times the scale, which Q8_0 has no room for.
std::byte* write_quantized_row(const std::string& tensor, TensorType type, const QuantizedRow& row, std::byte* out);

}  // namespace smartkv
