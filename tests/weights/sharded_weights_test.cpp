// The parts of a model, joined, must equal the model.
#include "engine/weights/sharded_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "tests/engine/model/tiny_llama.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

TEST(ShardRange, SharesEvenlyAndTheFirstGetMore) {
  int64_t next = 0;
  const int64_t expected[] = {3, 3, 2, 2};
  for (int64_t rank = 0; rank < 4; ++rank) {
    const ShardRange range = shard_range(10, {rank, 4});
    EXPECT_EQ(range.first, next);
    EXPECT_EQ(range.n, expected[rank]);
    next += range.n;
  }
  EXPECT_EQ(next, 10);
}

// A matrix or vector as floats, [rows, columns].
struct Values {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

Values read(const Weights& weights, const std::string& name) {
  const auto view = weights.find(name);
  return {view->shape, weights.read(name, view->shape)};
}

// Joins parts side by side (columns), or one below the other.
Values joined(const std::vector<Values>& parts, bool columns) {
  Values all = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const Values& part = parts[i];
    if (!columns) {
      all.shape[0] += part.shape[0];
      all.data.insert(all.data.end(), part.data.begin(), part.data.end());
      continue;
    }
    Values wider{{all.shape[0], all.shape[1] + part.shape[1]}, {}};
    for (int64_t row = 0; row < all.shape[0]; ++row) {
      for (const Values* from : {static_cast<const Values*>(&all), &part}) {
        const auto begin = from->data.begin() + row * from->shape[1];
        wider.data.insert(wider.data.end(), begin, begin + from->shape[1]);
      }
    }
    all = wider;
  }
  return all;
}

void expect_parts_make_the_whole(const Weights& weights, int64_t size) {
  std::vector<std::unique_ptr<Weights>> parts;
  for (int64_t rank = 0; rank < size; ++rank) parts.push_back(shard_weights(weights, {rank, size}));
  int64_t cut = 0;
  for (const std::string& name : weights.names()) {
    const Values whole = read(weights, name);
    std::vector<Values> of_parts;
    for (const auto& part : parts) of_parts.push_back(read(*part, name));
    const bool replicated = of_parts[0].shape == whole.shape;
    if (replicated) {
      for (const Values& part : of_parts) EXPECT_EQ(part.data, whole.data) << name;
      continue;
    }
    ++cut;
    const bool columns = of_parts[0].shape.size() == 2 && of_parts[0].shape[1] != whole.shape[1];
    EXPECT_EQ(columns, name.find(".o_proj.") != name.npos || name.find(".down_proj.") != name.npos) << name;
    const Values all = joined(of_parts, columns);
    EXPECT_EQ(all.shape, whole.shape) << name;
    EXPECT_EQ(all.data, whole.data) << name;
  }
  const ModelConfig& c = weights.config();
  EXPECT_EQ(cut, c.n_layers * (7 + (c.attention_bias ? 3 : 0) + (c.mlp_bias ? 2 : 0)));
}

TEST(ShardedWeights, PartsMakeTheWhole) {
  ModelConfig config = tiny_config();
  config.n_heads = 6;
  config.n_kv_heads = 3;
  config.attention_bias = config.mlp_bias = true;
  config.intermediate_size = 90;
  const TinyWeights weights(config);
  for (const int64_t size : {2, 3}) expect_parts_make_the_whole(weights, size);
}

// The file has the rows of q and k in another order.
TEST(ShardedWeights, PartsOfAFileMakeTheWhole) {
  const auto weights = Weights::open(std::filesystem::path(SMARTKV_FIXTURES) / "architectures" / "llama_odd.gguf");
  ASSERT_GE(weights->config().n_kv_heads, 2);
  expect_parts_make_the_whole(*weights, 2);
}

TEST(ShardedWeights, ExpertsAreRefused) {
  EXPECT_NO_THROW(check_shards(tiny_experts(), 1));
  EXPECT_THAT(error_of([] { check_shards(tiny_experts(), 2); }),
              testing::HasSubstr("tensor_parallel: expected 1 for tiny, which has experts (llama), found 2"));
}

TEST(ShardedWeights, ConfigsAddUp) {
  ModelConfig config = tiny_config();
  config.n_heads = 10;
  config.n_kv_heads = 5;
  config.intermediate_size = 1000;
  int64_t heads = 0, kv_heads = 0, intermediate = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const ModelConfig part = shard_config(config, {rank, 3});
    EXPECT_EQ(part.n_heads, 2 * part.n_kv_heads);
    EXPECT_TRUE(rank == 2 || part.intermediate_size % 32 == 0) << part.intermediate_size;
    heads += part.n_heads;
    kv_heads += part.n_kv_heads;
    intermediate += part.intermediate_size;
  }
  EXPECT_EQ(heads, 10);
  EXPECT_EQ(kv_heads, 5);
  EXPECT_EQ(intermediate, 1000);
}

}  // namespace
}  // namespace smartkv
