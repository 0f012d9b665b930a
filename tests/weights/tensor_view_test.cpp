#include "engine/weights/tensor_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/quantized_rows.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

// The packed layout of a tensor must hold the weights of its second row, `expected`, without loss, in at most 1.1 times
// the bytes of the file.
void expect_kept(const TensorView& tensor, const std::vector<float>& expected) {
  const std::optional<MatrixFormat> format = kept_format(tensor);
  if (!format) return;
  const int64_t k = tensor.row_elements();
  kernels::PackedMatrix matrix = kernels::make_packed(format->type, 16, k, format->minimums);
  EXPECT_LE(static_cast<double>(matrix.bytes()), 1.1 * 8 * static_cast<double>(tensor.data.size())) << tensor.name;
  if (format->coded()) {
    std::vector<kernels::CodedBlock> blocks;
    read_coded_row(tensor, 1, blocks);
    for (size_t i = 0; i < blocks.size(); ++i) kernels::pack_block(matrix, 0, static_cast<int64_t>(i), 3, blocks[i]);
    EXPECT_THROW(read_coded_row(tensor, 2, blocks), std::invalid_argument);
    QuantizedRow row;
    EXPECT_THROW(read_quantized_row(tensor, 1, row), std::invalid_argument);
  } else {
    QuantizedRow row;
    read_quantized_row(tensor, 1, row);
    for (int64_t g = 0; g < k / kRowGroup; ++g)
      kernels::pack_group(matrix, 0, g, 3, row.q.data() + g * kRowGroup, row.scale[g], row.minimum[g]);
    EXPECT_THROW(read_quantized_row(tensor, 2, row), std::invalid_argument);
  }
  std::vector<float> found(expected.size());
  kernels::unpack_row(matrix, 3, found.data());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-6 * largest) << tensor.name << " " << i;
}

// Writing a row back must give what was read. Q4_0 becomes Q4_1.
void expect_written(const TensorView& tensor) {
  QuantizedRow row, again;
  read_quantized_row(tensor, 1, row);
  const TensorType written = tensor.type == TensorType::kQ8_0 ? TensorType::kQ8_0 : TensorType::kQ4_1;
  std::vector<std::byte> blocks(row.scale.size() * static_cast<size_t>(tensor_type_info(written).block_bytes));
  EXPECT_EQ(write_quantized_row(tensor.name, written, row, blocks.data()), blocks.data() + blocks.size());
  read_quantized_row({tensor.name, written, {1, tensor.row_elements()}, blocks}, 0, again);
  EXPECT_EQ(again.q, row.q);
  EXPECT_EQ(again.scale, row.scale);
  for (size_t g = 0; g < row.minimum.size(); ++g)
    EXPECT_NEAR(again.minimum[g], row.minimum[g], 1e-3 * std::abs(row.minimum[g]) + 1e-7);
}

TEST(ExpandRows, EqualsTheReferenceForEveryType) {
  std::map<std::string, TensorType> types;
  for (const TensorTypeInfo& info : tensor_types()) {
    const bool exact = info.type == TensorType::kF32 || info.type == TensorType::kI32 || info.type == TensorType::kU8;
    if (info.expand != nullptr && !exact) types[std::string(info.name)] = info.type;
  }
  const nlohmann::json fixture = nlohmann::json::parse(read_file(kFixtures / "blocks.json"));
  ASSERT_EQ(fixture.size(), types.size());
  for (const auto& [name, item] : fixture.items()) {
    const std::string hex = item["bytes"];
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    const std::vector<float> expected = item["values"];
    TensorView tensor{name, types.at(name), {2, static_cast<int64_t>(expected.size() / 2)}, bytes_of(bytes)};
    std::vector<float> found(expected.size());
    expand_rows(tensor, 0, 2, found.data());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << name << " " << i;
    std::vector<float> second(expected.size() / 2);
    expand_rows(tensor, 1, 1, second.data());
    EXPECT_TRUE(std::equal(second.begin(), second.end(), found.begin() + second.size()));
    EXPECT_THROW(expand_rows(tensor, 1, 2, found.data()), std::out_of_range);

    expect_kept(tensor, second);
    if (name == "Q4_1" || name == "Q4_0" || name == "Q8_0") expect_written(tensor);
  }
}

}  // namespace
}  // namespace smartkv
