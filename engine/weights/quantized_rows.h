// Weights that files hold as integers, read without expanding them to floats. There are two forms:
//  - Groups of 32 weights along a row, each with a scale and a minimum: Q4_0, Q4_1, Q8_0, Q4_K with scales and minimums
//    rounded to f16, and GPTQ and AWQ, whose groups are 32 weights or a multiple of it.
//  - Blocks of coded groups (kernels::CodedBlock), which hold Q4_K and Q6_K without rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/tensor_view.h"
#include "kernels/linear.h"

namespace smartkv {

inline constexpr int64_t kRowGroup = 32;  // weights with one scale and one minimum

// A row of weights: weight = scale q + minimum, with one scale and one minimum for each group.
struct QuantizedRow {
  std::vector<uint8_t> q;             // [row_elements]
  std::vector<float> scale, minimum;  // [row_elements / kRowGroup]
  void resize(int64_t elements);
};

// Returns whether the tensor holds F32, F16 or BF16, and so is not quantized.
bool is_float(const TensorView& tensor);

// Returns the bits of the integers, 4 or 8, of a tensor with groups of 32 weights. Returns 0 for other tensors.
int group_bits(const TensorView& tensor);

// Returns whether each minimum of such a tensor is that of centred integers of `bits` (4 or 8) bits, or becomes that by
// shifting the integers.
bool has_centred_groups(const TensorView& tensor, int bits);

// Reads a row, counted as in the file. Throws std::invalid_argument if the tensor has no such row or no such groups.
void read_quantized_row(const TensorView& tensor, int64_t row, QuantizedRow& out);

// Returns the bits of the integers, 4 or 6, of a tensor with coded groups. Returns 0 for other tensors.
int coded_bits(const TensorView& tensor);

// Reads a row of such a tensor. Throws std::invalid_argument if the tensor has no such row or no coded groups.
void read_coded_row(const TensorView& tensor, int64_t row, std::vector<kernels::CodedBlock>& out);

// Writes a row as blocks of `type`, Q4_1 or Q8_0, and returns the end of the blocks. Throws ModelError naming the
// tensor if the type is Q8_0 and a minimum is not -128 times its scale, because Q8_0 stores no minimums. Throws
// std::invalid_argument for other types.
std::byte* write_quantized_row(const std::string& tensor, TensorType type, const QuantizedRow& row, std::byte* out);

}  // namespace smartkv
