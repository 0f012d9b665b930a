#include "cache/policies/gated_eviction/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cache/sequence_cache.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

constexpr int64_t kHeadDim = 64;

std::vector<float> normal(int64_t n, float deviation, std::mt19937& random) {
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = distribution(random);
  return values;
}

std::vector<GateLayer> random_layers(int64_t n_layers) {
  std::mt19937 random(1);
  std::vector<GateLayer> layers(static_cast<size_t>(n_layers));
  for (GateLayer& layer : layers) {
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, kHeadDim);
      layer.weight[i] = normal(out * in, std::sqrt(2.0f / static_cast<float>(in)), random);
      layer.bias[i] = normal(out, 0.1f, random);
    }
  }
  return layers;
}

// Computes the gate's MLP in double precision.
double reference(const GateLayer& layer, const float* key) {
  std::vector<double> x(key, key + kHeadDim);
  for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
    const auto [out, in] = GateLayer::shape(i, kHeadDim);
    std::vector<double> y(static_cast<size_t>(out));
    for (int64_t row = 0; row < out; ++row) {
      double sum = layer.bias[i][row];
      for (int64_t column = 0; column < in; ++column) sum += layer.weight[i][row * in + column] * x[column];
      y[row] = i == GateLayer::kDepth - 1 ? sum : std::max(sum, 0.0);
    }
    x = std::move(y);
  }
  return x[0];
}

TEST(Gate, ScoresAreTheMlpOfEachLayer) {
  const std::vector<GateLayer> layers = random_layers(2);
  const LifespanGate gate(1, kHeadDim, layers);
  EXPECT_EQ(gate.n_layers(), 2);
  EXPECT_EQ(gate.head_dim(), kHeadDim);
  std::mt19937 random(2);
  const std::vector<float> keys = normal(20 * kHeadDim, 1.0f, random);
  std::vector<float> scores(20);
  for (int64_t layer = 0; layer < 2; ++layer) {
    gate.score(nullptr, layer, keys.data(), 20, scores.data());
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(scores[i], reference(layers[layer], keys.data() + i * kHeadDim), 0.05)
          << "layer " << layer << ", key " << i;
    }
  }
}

TEST(Gate, AScoreDependsOnNothingButItsKey) {
  const LifespanGate gate(1, kHeadDim, random_layers(1));
  constexpr int64_t kKeys = 1100;  // more than one chunk
  std::mt19937 random(3);
  const std::vector<float> keys = normal(kKeys * kHeadDim, 1.0f, random);
  std::vector<float> together(kKeys), threaded(kKeys);
  gate.score(nullptr, 0, keys.data(), kKeys, together.data());
  ThreadPool pool(3);
  gate.score(&pool, 0, keys.data(), kKeys, threaded.data());
  EXPECT_EQ(together, threaded);
  for (const int64_t i : {0, 1, 511, 512, 1023, 1099}) {
    float alone = 0;
    gate.score(nullptr, 0, keys.data() + i * kHeadDim, 1, &alone);
    EXPECT_EQ(alone, together[i]) << "key " << i;
  }
  gate.score(nullptr, 0, keys.data(), 0, nullptr);  // no keys are fine
}

TEST(Gate, NamesTheMapOfAWrongSize) {
  std::vector<GateLayer> layers = random_layers(2);
  layers[1].weight[2].pop_back();
  try {
    const LifespanGate gate(1, kHeadDim, layers);
    FAIL() << "no error";
  } catch (const CacheError& error) {
    EXPECT_STREQ(error.what(), "gate: layer 1, map 2, weight: expected 65536 values, found 65535");
  }
}

TEST(Gate, ItsSecondHeadIsALinearMapOfKeysAndValues) {
  constexpr int64_t kHeads = 2, kFeatures = GateLayer::importance_features(kHeads, kHeadDim);
  std::vector<GateLayer> layers = random_layers(2);
  EXPECT_FALSE(LifespanGate(kHeads, kHeadDim, layers).has_importance());
  for (size_t layer = 0; layer < 2; ++layer) {
    layers[layer].importance.assign(static_cast<size_t>(kHeads * (kFeatures + 1)), 0.0f);
    float* second = layers[layer].importance.data() + kFeatures + 1;
    second[3] = 2.0f;               // key element 3 of KV head 0
    second[kFeatures - 1] = -1.0f;  // the last element of the last head's value
    second[kFeatures] = 0.5f + static_cast<float>(layer);
  }
  const LifespanGate gate(kHeads, kHeadDim, layers);
  ASSERT_TRUE(gate.has_importance());
  constexpr int64_t kTokens = 3;
  std::vector<float> keys(kHeads * kTokens * kHeadDim, 7.0f), values(keys), scores(kTokens, -1.0f);
  keys[(0 * kTokens + 1) * kHeadDim + 3] = 4.0f;  // KV head 0, token 1
  values[(1 * kTokens + 1) * kHeadDim + kHeadDim - 1] = 3.0f;
  const auto importance = [&](const GateMaps& maps, int64_t head, int64_t from, int64_t end) {
    gate_importance(maps, 1, head, keys.data(), values.data(), kTokens, from, end, scores.data());
  };
  importance(*gate.maps(0, kHeads), 1, 1, 3);
  EXPECT_EQ(scores, (std::vector<float>{-1.0f, 2 * 4.0f - 3.0f + 1.5f, 2 * 7.0f - 7.0f + 1.5f}));
  importance(*gate.maps(0, kHeads), 0, 0, 1);
  EXPECT_EQ(scores[0], 0.0f);
  // In parts, as tensor-parallel ranks hold them: one KV head each.
  importance(*gate.maps(0, 1), 1, 1, 2);
  EXPECT_EQ(scores[1], 2 * 4.0f + 1.5f);
  const auto second_part = gate.maps(1, 1);
  EXPECT_EQ(second_part->layers[1], gate.maps(0, kHeads)->layers[1]);  // the maps for lifespans serve every head
  gate_importance(*second_part, 1, 1, keys.data() + kTokens * kHeadDim, values.data() + kTokens * kHeadDim, kTokens, 1,
                  2, scores.data());
  EXPECT_EQ(scores[1], -3.0f);
  layers[1].importance.pop_back();
  try {
    const LifespanGate wrong(kHeads, kHeadDim, layers);
    FAIL() << "no error";
  } catch (const CacheError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 25), "gate: layer 1, importance");
  }
}

TEST(Gate, ExpiryGrowsFasterThanTheLifespan) {
  EXPECT_FLOAT_EQ(expiry(100, 2.0f), 100.0f);
  EXPECT_NEAR(expiry(100, 5.0f), 100 + 1024 * std::log(64.0), 0.01);
}

TEST(Gate, CountsItsBytes) {
  // bf16 weights, the last map padded to 16 features, and f32 biases.
  const int64_t expected = 2 * (256 * kHeadDim + 2 * 256 * 256 + 16 * 256) + 4 * (3 * 256 + 1);
  EXPECT_EQ(LifespanGate(1, kHeadDim, random_layers(1)).bytes(), expected);
}

}  // namespace
}  // namespace smartkv
