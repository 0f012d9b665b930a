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

TEST(ExpandRows, EqualsTheReferenceForEveryType) {
  std::map<std::string, TensorType> types;
  for (const TensorTypeInfo& info : tensor_types()) {
    const bool exact = info.type == TensorType::kF32 || info.type == TensorType::kI32;
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

    if (coded_bits(tensor) > 0) {
      std::vector<kernels::CodedBlock> blocks;
      read_coded_row(tensor, 1, blocks);
      ASSERT_EQ(blocks.size() * 256, second.size());
      for (size_t i = 0; i < second.size(); ++i) {
        const kernels::CodedBlock& block = blocks[i / 256];
        const size_t g = i % 256 / 32, half = i % 32 / 16;
        const float q = block.q[i % 256], first = block.factors[0] * block.codes[0][g],
                    other = block.factors[1] * block.codes[1][g];
        const float value = name == "Q4_K" ? first * q + other : (half == 0 ? first : other) * (q - 32);
        EXPECT_NEAR(value, second[i], 1e-6 * (std::abs(first * q) + std::abs(other))) << name << " " << i;
      }
      EXPECT_THROW(read_coded_row(tensor, 2, blocks), std::invalid_argument);
    }
    if (group_bits(tensor) == 0) continue;
    QuantizedRow row;
    read_quantized_row(tensor, 1, row);
    for (size_t i = 0; i < row.q.size(); ++i) {
      const float scaled = row.scale[i / 32] * row.q[i], minimum = row.minimum[i / 32];
      const double rounding =
          tensor.type == TensorType::kQ4_K ? std::ldexp(std::abs(scaled) + std::abs(minimum), -11) : 0.0;  // to f16
      EXPECT_NEAR(scaled + minimum, second[i], rounding + 1e-5 * (1 + std::abs(second[i])));
    }
    // Writing a row back must give what was read. Q4_0 becomes Q4_1.
    const TensorType written = name == "Q8_0" ? TensorType::kQ8_0 : TensorType::kQ4_1;
    std::vector<std::byte> blocks(row.scale.size() * static_cast<size_t>(tensor_type_info(written).block_bytes));
    EXPECT_EQ(write_quantized_row(name, written, row, blocks.data()), blocks.data() + blocks.size());
    QuantizedRow again;
    read_quantized_row({name, written, {1, tensor.row_elements()}, blocks}, 0, again);
    EXPECT_EQ(again.q, row.q);
    EXPECT_EQ(again.scale, row.scale);
    for (size_t g = 0; g < row.minimum.size(); ++g)
      EXPECT_NEAR(again.minimum[g], row.minimum[g], 1e-3 * std::abs(row.minimum[g]) + 1e-7);
  }
}

}  // namespace
}  // namespace smartkv
