// Weights that files hold as integers, read without expanding them to floats. There are two forms:
//  - Groups of 32 weights along a row, each with a scale and a minimum.
//  - Blocks of coded groups (kernels::CodedBlock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// The format of a packed matrix.
struct MatrixFormat {
  kernels::WeightType type = kernels::WeightType::kBf16;
  kernels::Minimums minimums = kernels::Minimums::kStored;
  bool operator==(const MatrixFormat&) const = default;
  bool coded() const { return minimums == kernels::Minimums::kCoded; }
};

// Returns the format that keeps the integers of the tensor: without loss, except that the minimums of GPTQ and AWQ with
// groups of 32 are rounded to f16. Returns nullopt for floats and for types without integers of about their size.
std::optional<MatrixFormat> kept_format(const TensorView& tensor);

// Reads a row, counted as in the file, of a tensor whose kept_format() is not coded. The columns of GPTQ with act-order
// are in the order of PackedIntegers::order. In NVFP4, scale and minimum are the scales of the halves of a group.
// Throws std::invalid_argument if the tensor has no such row or no such groups.
void read_quantized_row(const TensorView& tensor, int64_t row, QuantizedRow& out);

// Reads a row of a tensor whose kept_format() is coded. Throws std::invalid_argument for others.
void read_coded_row(const TensorView& tensor, int64_t row, std::vector<kernels::CodedBlock>& out);

// Writes a row as blocks of `type`, Q4_1 or Q8_0, and returns the end of the blocks. Throws ModelError naming the
// tensor if the type is Q8_0 and a minimum is not -128 times its scale, because Q8_0 stores no minimums. Throws
// std::invalid_argument for other types.
std::byte* write_quantized_row(const std::string& tensor, TensorType type, const QuantizedRow& row, std::byte* out);

}  // namespace smartkv
