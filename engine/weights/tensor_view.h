// A tensor in a mapped weight file: its type, shape and bytes. It does not own the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

enum class TensorType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kQ8_1,
  kNvfp4,
  kIq2Xxs,
  kIq2Xs,
  kIq2S,
  kIq3Xxs,
  kIq3S,
  kIq1S,
  kIq1M,
  kTq1_0,
  kTq2_0,
  kF8E4m3,
  kF8E5m2,  // safetensors; E4M3 has no infinities
  kI32,     // safetensors: the words into which GPTQ and AWQ pack their integers
  kU8,      // safetensors: the bytes of MXFP4
  kInt4,
  kInt8  // GPTQ and AWQ: TensorView::integers describes the layout
};

// A row of the table of tensor types.
struct TensorTypeInfo {
  TensorType type;
  std::string_view name;   // "Q4_1"
  int64_t block_elements;  // 1 for plain numbers, 32 or 256 for quantized blocks
  int64_t block_bytes;     // 0 if rows are not contiguous in the file (kInt4, kInt8)
  void (*expand)(const uint8_t* block, float* out) = nullptr;  // expands one block to f32; null for kInt4 and kInt8
  int ggml = -1;  // number of the type in GGUF files; -1 if they do not have it
};
// Returns the table, in the order of TensorType.
std::span<const TensorTypeInfo> tensor_types();
// Returns the row of a type.
const TensorTypeInfo& tensor_type_info(TensorType type);

// Factors of a matrix, one for each block of rows and columns.
struct WeightScales {
  std::vector<float> values;                  // [rows / block_rows rounded up, columns]
  int64_t block_rows = 1, block_columns = 1;  // Size of a block.
  int64_t columns = 1;                        // Blocks side by side.
};

struct PackedIntegers;

// A view must not outlive the mapped file.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;                            // row-major, outermost first: [out_features, in_features]
  std::span<const std::byte> data;                       // rows are contiguous; a row holds whole blocks
  std::shared_ptr<const WeightScales> scales = nullptr;  // Null if there are none.
  // Set for kInt4 and kInt8. `data` then holds the packed words of the whole projection.
  std::shared_ptr<const PackedIntegers> integers = nullptr;
  // First row in `scales` and `integers`. Not 0 if the view is a part of a tensor in the file.
  int64_t first_row = 0;
  // Elements from a row, and from a column, to the next in `data`, if rows are not contiguous (transposed floats); else
  // 0.
  int64_t row_step = 0, column_step = 0;

  int64_t elements() const;
  int64_t row_elements() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;
  int64_t bytes() const;  // Bytes that the rows take in the file.
};

// Expands rows [first, first + count) to f32 and applies the scales. out: [count, row_elements]. Throws
// std::out_of_range if the tensor does not have these rows.
void expand_rows(const TensorView& tensor, int64_t first, int64_t count, float* out);

}  // namespace smartkv
