// A tensor inside a mapped weight file: type, shape and bytes, nothing owned.
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
  kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIq4Nl, kIq4Xs, kMxfp4,
  kF8E4m3, kF8E5m2,  // of safetensors; E4M3 has no infinities
  kI32,              // of safetensors: what GPTQ and AWQ are packed into
  kInt4, kInt8       // of GPTQ and AWQ: TensorView::integers says where they are
};

struct TensorTypeInfo {
  std::string_view name;   // "Q4_1"
  int64_t block_elements;  // 1 for plain floats, 32 or 256 for quantised blocks
  int64_t block_bytes;     // 0: rows have no bytes of their own
};
const TensorTypeInfo& tensor_type_info(TensorType type);

// Factors of a matrix, one for each block of rows and columns.
struct WeightScales {
  std::vector<float> values;  // [rows / block_rows, columns], rounded up
  int64_t block_rows = 1, block_columns = 1;
  int64_t columns = 1;  // of the blocks
};

struct PackedIntegers;

struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;       // row-major, outermost first: [out_features, in_features]
  std::span<const std::byte> data;  // rows are contiguous; a row holds whole blocks
  std::shared_ptr<const WeightScales> scales = nullptr;     // null: none
  std::shared_ptr<const PackedIntegers> integers = nullptr;  // of kInt4 and kInt8, whose `data` is theirs as the file has it
  int64_t first_row = 0;  // of a part of a tensor: its first row, as `scales` and `integers` count them

  int64_t elements() const;
  int64_t row_elements() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;
  int64_t bytes() const;  // of the file
};

// Expands rows [first, first + count) to f32, scales applied. out: [count, row_elements]. Throws std::out_of_range.
void expand_rows(const TensorView& tensor, int64_t first, int64_t count, float* out);

}  // namespace smartkv
