// Fused projections in every form in which files hold them.
#include "engine/weights/projections.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/weights/packed_integers.h"
#include "engine/weights/quantized_rows.h"

namespace smartkv {
namespace {

constexpr int64_t kInputs = 64;
const std::string kLayer = "model.layers.0.";

ModelConfig one_layer() {
  ModelConfig config;
  config.n_layers = 1;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 16;
  config.hidden_size = kInputs;
  config.intermediate_size = 48;
  return config;
}

// Expects the rows of the parts to be those of the whole, in order.
void expect_parts(const TensorView& fused, const std::vector<std::pair<std::string, int64_t>>& parts) {
  TensorMap tensors{{fused.name, fused}};
  split_fused_projections(one_layer(), tensors);
  EXPECT_EQ(tensors.size(), parts.size());
  int64_t first = 0, bytes = 0;
  for (const auto& [name, rows] : parts) {
    const auto found = tensors.find(kLayer + name);
    ASSERT_NE(found, tensors.end()) << name;
    const TensorView& part = found->second;
    ASSERT_EQ(part.shape, (std::vector<int64_t>{rows, kInputs}));
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> values(kInputs), expected(kInputs);
      expand_rows(part, row, 1, values.data());
      expand_rows(fused, first + row, 1, expected.data());
      ASSERT_EQ(values, expected) << name << ", row " << row;
      if (!kept_format(part)) continue;
      QuantizedRow integers, whole;
      read_quantized_row(part, row, integers);
      read_quantized_row(fused, first + row, whole);
      ASSERT_EQ(integers.q, whole.q) << name << ", row " << row;
      ASSERT_EQ(integers.scale, whole.scale);
      ASSERT_EQ(integers.minimum, whole.minimum);
    }
    first += rows;
    bytes += part.bytes();
  }
  EXPECT_EQ(bytes, fused.bytes());
}

void expect_qkv_and_gate_up(const std::function<TensorView(const std::string& name, int64_t rows)>& make) {
  expect_parts(make(kLayer + "self_attn.qkv_proj.weight", 128),
               {{"self_attn.q_proj.weight", 64}, {"self_attn.k_proj.weight", 32}, {"self_attn.v_proj.weight", 32}});
  expect_parts(make(kLayer + "mlp.gate_up_proj.weight", 96),
               {{"mlp.gate_proj.weight", 48}, {"mlp.up_proj.weight", 48}});
}

std::vector<std::byte> random_bytes(int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::vector<std::byte> bytes(static_cast<size_t>(n));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 0x70);  // no NaN in 8 bits
  return bytes;
}

TEST(FusedProjections, OfFloatsAreSplit) {
  std::vector<std::byte> data;
  expect_qkv_and_gate_up([&](const std::string& name, int64_t rows) {
    data = random_bytes(rows * kInputs * 4);
    return TensorView{name, TensorType::kF32, {rows, kInputs}, data};
  });
}

// A block of scales spans the end of one part and the beginning of the next.
TEST(FusedProjections, OfFp8AreSplitWithTheirScales) {
  std::vector<std::byte> data;
  expect_qkv_and_gate_up([&](const std::string& name, int64_t rows) {
    data = random_bytes(rows * kInputs);
    auto scales = std::make_shared<WeightScales>();
    scales->block_rows = 40;
    scales->block_columns = 32;
    scales->columns = 2;
    for (int64_t i = 0; i < (rows + 39) / 40 * 2; ++i) scales->values.push_back(0.5f + static_cast<float>(i));
    return TensorView{name, TensorType::kF8E4m3, {rows, kInputs}, data, std::move(scales)};
  });
}

TEST(FusedProjections, OfGptqAndAwqAreSplitAsTheIntegersThatTheyAre) {
  using Layout = PackedIntegers::Layout;
  for (const auto& [layout, bits] :
       {std::pair<Layout, int64_t>{Layout::kGptq, 4}, {Layout::kGptqV2, 4}, {Layout::kGptq, 8}, {Layout::kAwq, 4}}) {
    SCOPED_TRACE(static_cast<int>(layout) * 10 + static_cast<int>(bits));
    std::vector<std::byte> data, zeros;
    expect_qkv_and_gate_up([&](const std::string& name, int64_t rows) {
      auto integers = std::make_shared<PackedIntegers>();
      data = random_bytes(rows * kInputs * bits / 8);
      zeros = random_bytes(rows * 2 * bits / 8);
      integers->layout = layout;
      integers->bits = bits;
      integers->inputs = kInputs;
      integers->outputs = rows;
      integers->q = data;
      integers->zeros = zeros;
      for (int64_t i = 0; i < 2 * rows; ++i) integers->scales.push_back(0.01f * static_cast<float>(1 + i % 50));
      for (int64_t k = 0; k < kInputs; ++k) integers->group_of.push_back(static_cast<int32_t>(k / 32));
      integers->order_inputs();
      return TensorView{
          name, bits == 4 ? TensorType::kInt4 : TensorType::kInt8, {rows, kInputs}, data, nullptr, std::move(integers)};
    });
  }
}

TEST(FusedProjections, OfAnotherNumberOfRowsStay) {
  const std::vector<std::byte> data = random_bytes(127 * kInputs * 4);
  const std::string name = kLayer + "self_attn.qkv_proj.weight";
  TensorMap tensors{{name, {name, TensorType::kF32, {127, kInputs}, data}}};
  split_fused_projections(one_layer(), tensors);
  EXPECT_TRUE(tensors.contains(name));
}

ModelConfig two_experts() {
  ModelConfig config = one_layer();
  config.n_experts = 2;
  config.experts_per_token = 1;
  config.expert_size = 16;
  config.shared_expert_size = 32;
  return config;
}

TEST(Experts, NamesOfEveryProgramAreThoseOfQwen) {
  const std::pair<const char*, const char*> names[] = {
      {"block_sparse_moe.gate.weight", "mlp.gate.weight"},
      {"block_sparse_moe.experts.3.w1.weight", "mlp.experts.3.gate_proj.weight"},
      {"block_sparse_moe.experts.3.w2.qweight", "mlp.experts.3.down_proj.qweight"},
      {"mlp.experts.3.w3.weight", "mlp.experts.3.up_proj.weight"},
      {"mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj.weight"},
      {"block_sparse_moe.experts.down_proj", "mlp.experts.down_proj.weight"},
      {"block_sparse_moe.input_linear.weight", "mlp.experts.gate_up_proj.weight"},
      {"block_sparse_moe.output_linear.weight", "mlp.experts.down_proj.weight"},
      {"block_sparse_moe.router.layer.weight", "mlp.gate.weight"},
      {"block_sparse_moe.router.weight", "mlp.gate.weight"},
      {"mlp.experts.3.gate_proj.weight", "mlp.experts.3.gate_proj.weight"},
      {"self_attn.q_proj.weight", "self_attn.q_proj.weight"}};
  for (const auto& [name, expected] : names) EXPECT_EQ(expert_tensor_name(kLayer + name), kLayer + expected);
}

TEST(Experts, TensorsOfAllExpertsAreSplit) {
  const ModelConfig config = two_experts();
  std::vector<float> values(2 * 32 * kInputs);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto view = [&](std::vector<int64_t> shape) {
    return TensorView{"t", TensorType::kF32, std::move(shape), std::as_bytes(std::span(values))};
  };
  const auto first = [](const TensorMap& tensors, const std::string& name) {
    const TensorView& part = tensors.at(kLayer + name);
    EXPECT_EQ(part.shape, (std::vector<int64_t>{16, kInputs})) << name;
    float value = 0;
    std::memcpy(&value, part.data.data(), sizeof value);
    return value;
  };
  TensorMap tensors;
  tensors[kLayer + "mlp.experts.gate_up_proj.weight"] = view({2, 32, kInputs});
  split_experts(config, tensors);
  EXPECT_EQ(first(tensors, "mlp.experts.0.gate_proj.weight"), 0);
  EXPECT_EQ(first(tensors, "mlp.experts.0.up_proj.weight"), 16 * kInputs);
  EXPECT_EQ(first(tensors, "mlp.experts.1.gate_proj.weight"), 32 * kInputs);
  EXPECT_EQ(first(tensors, "mlp.experts.1.up_proj.weight"), 48 * kInputs);
  EXPECT_EQ(tensors.size(), 4u);
  values.resize(2 * 16 * kInputs);
  tensors = {{kLayer + "mlp.experts.up_proj.weight", view({2, 16, kInputs})}};
  split_experts(config, tensors);
  EXPECT_EQ(first(tensors, "mlp.experts.1.up_proj.weight"), 16 * kInputs);
  // Older GGUF files have a tensor for each expert.
  values.resize(16 * kInputs);
  tensors = {{kLayer + "mlp.gate_proj.0.weight", view({16, kInputs})},
             {kLayer + "mlp.gate_proj.1.weight", view({16, kInputs})}};
  split_experts(config, tensors);
  EXPECT_EQ(first(tensors, "mlp.experts.1.gate_proj.weight"), 0);
  // Tensors of another number of experts stay.
  tensors = {{kLayer + "mlp.experts.up_proj.weight", view({4, 4, kInputs})}};
  split_experts(config, tensors);
  EXPECT_TRUE(tensors.contains(kLayer + "mlp.experts.up_proj.weight"));
}

TEST(Experts, SizesAreThoseOfTheirMlps) {
  const ModelConfig config = two_experts();
  const std::vector<MlpTensors> mlps = mlps_of(config, 0);
  ASSERT_EQ(mlps.size(), 3u);
  EXPECT_EQ(mlps[1].prefix, kLayer + "mlp.experts.1.");
  EXPECT_EQ(mlps[2].prefix, kLayer + "mlp.shared_expert.");
  for (const MlpTensors& mlp : mlps) EXPECT_EQ(mlp_size(config, mlp.prefix + "up_proj.weight"), mlp.size);
  EXPECT_EQ(mlp_size(config, kLayer + "mlp.up_proj.weight"), 48);
}

}  // namespace
}  // namespace smartkv
