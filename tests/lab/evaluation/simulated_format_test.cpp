#include "lab/evaluation/simulated_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace smartkv {
namespace {

std::vector<float> normal(size_t n, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> x(n);
  for (float& value : x) value = distribution(random);
  return x;
}

double square_sum(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

// Returns the squared error of `y`, relative to the squares of `x`.
double relative_error(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i]) - y[i], 2);
  return sum / square_sum(x);
}

CacheShape shape_of(int64_t head_dim) { return {8, 2, head_dim, kernels::KvType::kBf16}; }

struct Errors {
  double k, v;
};

// The errors of a format on normal values, for heads of 128 channels.
Errors errors_of(const std::string& name) {
  constexpr size_t kDim = 128, kHeads = 64;
  const TensorRanges ranges{std::vector<float>(8, 4.5f), std::vector<float>(8, 4.5f)};
  const SimulatedFormat format = simulated_format(name, shape_of(kDim), ranges);
  const auto tile = static_cast<size_t>(format.tile) * kDim;
  const std::vector<float> k = normal(kHeads * tile, 1), v = normal(kHeads * tile, 2);
  std::vector<float> k_back = k, v_back = v;
  for (size_t i = 0; i < kHeads; ++i) format.round_trip(3, k_back.data() + i * tile, v_back.data() + i * tile);
  return {relative_error(k, k_back), relative_error(v, v_back)};
}

TEST(SimulatedFormat, AHadamardRotationIsItsOwnInverse) {
  for (const size_t n : {64u, 96u, 128u}) {
    const std::vector<float> x = normal(n);
    std::vector<float> y = x;
    hadamard(y);
    EXPECT_NEAR(square_sum(y), square_sum(x), 1e-4 * square_sum(x));
    EXPECT_GT(relative_error(x, y), 0.1);
    hadamard(y);
    EXPECT_LT(relative_error(x, y), 1e-12);
  }
}

TEST(SimulatedFormat, FloatsOfEightAndFourBitsRoundToTheNearest) {
  EXPECT_EQ(to_e4m3(448), 448);
  EXPECT_EQ(to_e4m3(-1000), -448);
  EXPECT_EQ(to_e4m3(17), 16);  // halfway between 16 and 18: to the even one
  EXPECT_EQ(to_e4m3(19), 20);
  EXPECT_EQ(to_e4m3(0.3f), 0.3125f);
  EXPECT_EQ(to_e4m3(0.0021f), 0.001953125f);  // the least one that is not 0
  EXPECT_EQ(to_e4m3(0.0009f), 0);
  EXPECT_EQ(to_e2m1(0.25f), 0);
  EXPECT_EQ(to_e2m1(0.75f), 1);
  EXPECT_EQ(to_e2m1(1.3f), 1.5f);
  EXPECT_EQ(to_e2m1(-2.5f), -2);
  EXPECT_EQ(to_e2m1(5), 4);
  EXPECT_EQ(to_e2m1(5.1f), 6);
  EXPECT_EQ(to_e2m1(100), 6);
}

TEST(SimulatedFormat, BlocksOfLlamaCppKeepTheirLevels) {
  std::vector<float> x(32), y;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 16) - 8;  // all 16 levels of q4_0 with scale 1
  y = x;
  round_q4_0(y);
  EXPECT_EQ(x, y);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 127.0f - 7 * static_cast<float>(i);
  y = x;
  round_q8_0(y);
  EXPECT_EQ(x, y);
  y.assign(32, 0);
  round_q8_0(y);
  round_q4_0(y);
  EXPECT_EQ(y, std::vector<float>(32, 0));
}

TEST(SimulatedFormat, ARangeKeepsItsEnds) {
  std::vector<float> x = {1, 2, 3.4f, 4};
  round_range(x, 2);
  EXPECT_EQ(x, (std::vector<float>{1, 2, 3, 4}));
  x = {0.5f, 0.5f};
  round_range(x, 2);
  EXPECT_EQ(x, (std::vector<float>{0.5f, 0.5f}));
}

TEST(SimulatedFormat, ScalesCountInTheBytes) {
  const auto bytes = [](const char* name, int64_t head_dim) {
    const TensorRanges ranges{std::vector<float>(8, 1), std::vector<float>(8, 1)};
    return simulated_format(name, shape_of(head_dim), ranges).tile_bytes;
  };
  EXPECT_EQ(bytes("q8_0", 64), 2 * 2 * 34);
  EXPECT_EQ(bytes("q4_0_hadamard", 64), 2 * 2 * 18);
  EXPECT_EQ(bytes("fp8", 64), 2 * 64);
  EXPECT_EQ(bytes("nvfp4", 64), 2 * (32 + 4));
  EXPECT_EQ(bytes("turboquant_4", 128), 64 + 2 + 64 + 4);
  EXPECT_EQ(bytes("turboquant_3", 128), 48 + 2 + 48 + 4);
  EXPECT_EQ(bytes("kvarn_k4v2", 128), 128 * 128 * 6 / 8 + 2 * (3 * 128) + 2 * (3 * 128));
}

// The errors of a normal variable's best quantizers are Max's (1960): 0.0095 with 4 bits, 0.0345 with 3. Those of
// uniform levels between the ends of 128 normal values are greater.
TEST(SimulatedFormat, ErrorsAreThoseOfTheirLevels) {
  const Errors q8 = errors_of("q8_0"), q4 = errors_of("q4_0_hadamard"), fp8 = errors_of("fp8"),
               nvfp4 = errors_of("nvfp4"), turbo4 = errors_of("turboquant_4"), turbo3 = errors_of("turboquant_3"),
               kvarn = errors_of("kvarn_k4v2");
  EXPECT_LT(q8.k, 5e-5);
  EXPECT_LT(q8.v, 5e-5);
  EXPECT_NEAR(q4.k, 0.0066, 0.0015);
  EXPECT_NEAR(q4.v, q4.k, 0.0005);
  EXPECT_NEAR(fp8.k, 0.0007, 0.0002);
  EXPECT_NEAR(nvfp4.k, 0.009, 0.003);
  EXPECT_NEAR(turbo4.k, 0.0095, 0.001);
  EXPECT_NEAR(turbo3.k, 0.0345, 0.003);
  EXPECT_NEAR(turbo4.v, 0.01, 0.003);
  EXPECT_NEAR(turbo3.v, 0.048, 0.015);
  EXPECT_NEAR(kvarn.k, 0.01, 0.003);
  EXPECT_NEAR(kvarn.v, 0.26, 0.08);
}

// One loud token and one loud channel cost the others nothing once the tile is balanced.
TEST(SimulatedFormat, KvarnBalancesTokensAndChannels) {
  constexpr size_t kDim = 64, kTile = 128;
  const SimulatedFormat format = simulated_format("kvarn_k4v2", shape_of(kDim));
  std::vector<float> k = normal(kTile * kDim), v = k;
  for (size_t i = 0; i < kDim; ++i) k[5 * kDim + i] *= 50;
  std::vector<float> back = k;
  format.round_trip(0, back.data(), v.data());
  const auto without_loud = [&](const std::vector<float>& x) {
    std::vector<float> rest = x;
    rest.erase(rest.begin() + 5 * kDim, rest.begin() + 6 * kDim);
    return rest;
  };
  EXPECT_LT(relative_error(without_loud(k), without_loud(back)), 0.02);
}

TEST(SimulatedFormat, NamesWhatItDoesNotSupport) {
  const auto error_of = [](const std::string& name, int64_t head_dim) -> std::string {
    try {
      simulated_format(name, shape_of(head_dim));
      return "no error";
    } catch (const CacheError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of("q9", 64), testing::HasSubstr("kv_cache.format: expected one of q8_0, q4_0_hadamard"));
  EXPECT_THAT(error_of("q8_0", 80), testing::HasSubstr("a multiple of 32, found 80"));
  EXPECT_EQ(error_of("fp8", 80), "no error");
  EXPECT_TRUE(needs_ranges("nvfp4"));
  EXPECT_FALSE(needs_ranges("fp8"));
}

}  // namespace
}  // namespace smartkv
