#include "kernels/quantized_page.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv::kernels {
namespace {

class QuantizedPage : public testing::TestWithParam<int64_t> {
 protected:
  std::vector<float> random(uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kPageTokens * GetParam()));
    for (float& value : x) value = 3.0f + normal(generator);
    return x;
  }
};

TEST_P(QuantizedPage, RefusesWhatIsNotFiniteAndNothingElse) {
  const int64_t dim = GetParam();
  const QuantizedLayout layout{uniform_runs(dim, 4), uniform_runs(kPageTokens, 8)};
  std::vector<uint8_t> block(static_cast<size_t>(quantized_offsets(layout, dim).total));
  const auto quantize = [&](const std::vector<float>& k, const std::vector<float>& v) {
    quantize_page(layout, dim, nullptr, k.data(), v.data(), block.data());
  };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{17}, static_cast<size_t>(kPageTokens * dim - 1)}) {
      std::vector<float> x = random(1);
      const std::vector<float> good = x;
      x[at] = bad;
      EXPECT_THROW(quantize(x, good), std::invalid_argument) << bad << " in K at " << at;
      EXPECT_THROW(quantize(good, x), std::invalid_argument) << bad << " in V at " << at;
    }
  }
  const std::vector<float> huge(static_cast<size_t>(kPageTokens * dim), 3e38f);  // their sum is not finite
  EXPECT_NO_THROW(quantize(huge, huge));
}

TEST_P(QuantizedPage, ErrorStaysBelowAStepAndFallsWithBits) {
  const int64_t dim = GetParam();
  const std::vector<float> k = random(1), v = random(2);
  double last = 0;
  for (const int bits : {8, 4, 3, 2}) {
    const QuantizedLayout layout{uniform_runs(dim, bits), uniform_runs(kPageTokens, bits)};
    const QuantizedOffsets at = quantized_offsets(layout, dim);
    EXPECT_EQ(at.total % 64, 0);
    EXPECT_EQ(at.total, (4 * dim + 4 * kPageTokens + 63) / 64 * 64 + kPageTokens * (dim + block_rows(dim)) * bits / 8);
    std::vector<uint8_t> block(static_cast<size_t>(at.total));
    std::vector<float> k2(k.size()), v2(v.size());
    quantize_page(layout, dim, nullptr, k.data(), v.data(), block.data());
    dequantize_page(layout, dim, nullptr, block.data(), k2.data(), v2.data());
    double error = 0;
    for (size_t i = 0; i < k.size(); ++i) error += std::pow(k[i] - k2[i], 2) + std::pow(v[i] - v2[i], 2);
    error = std::sqrt(error / static_cast<double>(2 * k.size()));
    EXPECT_LT(error, 1.6 / ((1 << bits) - 1)) << bits;
    EXPECT_GT(error, 1.7 * last);
    last = error;
  }
}

TEST_P(QuantizedPage, MixedRunsFollowTheChannelOrder) {
  const int64_t dim = GetParam();
  std::vector<float> k = random(3), v = random(4);
  std::vector<uint8_t> order(static_cast<size_t>(dim));
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(5));
  QuantizedLayout layout;
  const auto q = static_cast<uint8_t>(dim / 16);
  layout.k.quads = {q, q, q, q};
  layout.v.quads = {4, 4, 4, 4};
  std::vector<uint8_t> block(static_cast<size_t>(quantized_offsets(layout, dim).total));
  std::vector<float> k2(k.size()), v2(v.size());
  quantize_page(layout, dim, order.data(), k.data(), v.data(), block.data());
  dequantize_page(layout, dim, order.data(), block.data(), k2.data(), v2.data());
  // Mean squared errors of the four runs rise from run to run.
  double last_k = 0, last_v = 0;
  for (int64_t run = 0; run < 4; ++run) {
    double error_k = 0, error_v = 0;
    for (int64_t c = run * dim / 4; c < (run + 1) * dim / 4; ++c) {
      for (int64_t t = 0; t < kPageTokens; ++t) {
        const auto i = static_cast<size_t>(t * dim + order[static_cast<size_t>(c)]);
        error_k += std::pow(k[i] - k2[i], 2) / static_cast<double>(dim / 4 * kPageTokens);
      }
    }
    for (int64_t i = run * 16 * dim; i < (run + 1) * 16 * dim; ++i) {
      error_v += std::pow(v[static_cast<size_t>(i)] - v2[static_cast<size_t>(i)], 2) / static_cast<double>(16 * dim);
    }
    EXPECT_GT(error_k, 1.7 * last_k);
    EXPECT_GT(error_v, 1.7 * last_v);
    last_k = error_k;
    last_v = error_v;
  }
}

TEST_P(QuantizedPage, ConstantColumnsAreExact) {
  const int64_t dim = GetParam();
  const std::vector<float> x(static_cast<size_t>(kPageTokens * dim), 1.5f);
  const QuantizedLayout layout{uniform_runs(dim, 2), uniform_runs(kPageTokens, 3)};
  std::vector<uint8_t> block(static_cast<size_t>(quantized_offsets(layout, dim).total));
  std::vector<float> k(x.size()), v(x.size());
  quantize_page(layout, dim, nullptr, x.data(), x.data(), block.data());
  dequantize_page(layout, dim, nullptr, block.data(), k.data(), v.data());
  EXPECT_EQ(k, x);
  EXPECT_EQ(v, x);
}

TEST_P(QuantizedPage, ColumnsWithoutCodesAreTheirMeans) {
  const int64_t dim = GetParam();
  const std::vector<float> k = random(6), v = random(7);
  const auto quads = static_cast<uint8_t>(dim / 4);
  const QuantizedLayout layout{{{static_cast<uint8_t>(quads - 1), 0, 0, 0}, 1}, {{0, 14, 0, 0}, 2}};
  const QuantizedOffsets at = quantized_offsets(layout, dim);
  EXPECT_EQ(at.k_zeros - at.k_scales, 2 * (dim - 4));
  EXPECT_EQ(at.v_zeros - at.v_scales, 2 * (kPageTokens - 8));
  EXPECT_EQ(at.k_codes % 64, 0);
  EXPECT_EQ(at.total - at.k_codes, kPageTokens * (dim - 4) + block_rows(dim) * (kPageTokens - 8) / 2);
  std::vector<uint8_t> block(static_cast<size_t>(at.total));
  std::vector<float> k2(k.size()), v2(v.size());
  quantize_page(layout, dim, nullptr, k.data(), v.data(), block.data());
  dequantize_page(layout, dim, nullptr, block.data(), k2.data(), v2.data());
  for (int64_t d = dim - 4; d < dim; ++d) {
    double mean = 0;
    for (int64_t t = 0; t < kPageTokens; ++t) mean += static_cast<double>(k[t * dim + d]) / kPageTokens;
    for (int64_t t = 0; t < kPageTokens; ++t) EXPECT_NEAR(k2[t * dim + d], mean, 4e-3);
  }
  for (int64_t t = kPageTokens - 8; t < kPageTokens; ++t) {
    double mean = 0;
    for (int64_t d = 0; d < dim; ++d) mean += static_cast<double>(v[t * dim + d]) / static_cast<double>(dim);
    for (int64_t d = 0; d < dim; ++d) EXPECT_NEAR(v2[t * dim + d], mean, 4e-3);
  }
  EXPECT_NEAR(k2[0], k[0], 0.05);
}

INSTANTIATE_TEST_SUITE_P(HeadDim, QuantizedPage, testing::Values(16, 64, 80, 128));

TEST(QuantizedPageChecks, NamesWhatIsWrong) {
  EXPECT_THROW(uniform_runs(64, 5), std::invalid_argument);
  const QuantizedLayout layout{uniform_runs(64, 4), uniform_runs(64, 4)};
  std::vector<float> x(64 * 96, std::nanf(""));
  std::vector<uint8_t> block(65536);
  EXPECT_THROW(quantize_page(layout, 96, nullptr, x.data(), x.data(), block.data()), std::invalid_argument);
  EXPECT_THROW(quantize_page(layout, 128, nullptr, x.data(), x.data(), block.data()), std::invalid_argument);
  EXPECT_THROW(quantize_page(layout, 64, nullptr, x.data(), x.data(), block.data()), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
