#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

class ElementwiseLevels : public testing::TestWithParam<CpuLevel> {
 protected:
  void SetUp() override {
    if (GetParam() <= detected_cpu_level()) set_cpu_level(GetParam());
  }
  void TearDown() override { set_cpu_level(detected_cpu_level()); }
};

std::vector<float> normal_floats(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

TEST_P(ElementwiseLevels, RmsNormEqualsTheDefinition) {
  ThreadPool pool(2);
  for (const int64_t n : {1, 15, 16, 576, 1001}) {
    const int64_t rows = 19;
    const std::vector<float> x = normal_floats(rows * n, 1), weight = normal_floats(n, 2);
    std::vector<float> out(static_cast<size_t>(rows * n));
    std::vector<uint16_t> rounded(out.size());
    rms_norm(pool, x.data(), rows, n, weight.data(), 1e-5f, KvType::kF32, out.data());
    rms_norm(pool, x.data(), rows, n, weight.data(), 1e-5f, KvType::kBf16, rounded.data());
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[r * n + i]) * x[r * n + i];
      for (int64_t i = 0; i < n; ++i) {
        const double expected = x[r * n + i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * weight[i];
        EXPECT_NEAR(out[r * n + i], expected, 1e-5 * (1 + std::abs(expected)));
        EXPECT_EQ(rounded[r * n + i], to_bf16(out[r * n + i]));
      }
    }
  }
}

TEST_P(ElementwiseLevels, RopeRotatesHalves) {
  for (const int64_t dim : {8, 32, 64, 80}) {
    std::vector<float> x = normal_floats(3 * dim, 3);
    const std::vector<float> before = x, angle = normal_floats(dim / 2, 4);
    std::vector<float> cos, sin;
    for (const float a : angle) {
      cos.push_back(std::cos(a));
      sin.push_back(std::sin(a));
    }
    rope(x.data(), 3, dim, cos.data(), sin.data());
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t i = 0; i < dim / 2; ++i) {
        const float a = before[h * dim + i], b = before[h * dim + i + dim / 2];
        EXPECT_NEAR(x[h * dim + i], a * cos[i] - b * sin[i], 1e-5);
        EXPECT_NEAR(x[h * dim + i + dim / 2], b * cos[i] + a * sin[i], 1e-5);
      }
    }
  }
}

TEST_P(ElementwiseLevels, CodesAndTheirSumsEqualTheDefinition) {
  for (const int64_t n : {16, 64, 192}) {
    const std::vector<float> x = normal_floats(n, 5);
    for (const CodeLine line :
         {CodeLine{0.125f, -1.0f, 15.0f}, CodeLine{0.03f, -3.0f, 255.0f}, CodeLine{0.0f, 0.5f, 3.0f}}) {
      double error = 0, sum_c = 0, sum_cc = 0, sum_xc = 0;
      std::vector<uint8_t> expected, codes(x.size());
      for (const float value : x) {
        const float level = line.scale > 0 ? (value - line.zero) * (1.0f / line.scale) : 0.0f;
        const float c = std::nearbyintf(std::clamp(level, 0.0f, line.most));
        expected.push_back(static_cast<uint8_t>(c));
        const double difference = static_cast<double>(value) - (line.zero + line.scale * c);
        error += difference * difference;
        sum_c += c;
        sum_cc += static_cast<double>(c) * c;
        sum_xc += static_cast<double>(value) * c;
      }
      const ElementwiseKernels& kernels = *cpu_kernels().elementwise;
      kernels.encode(x.data(), n, line, codes.data());
      EXPECT_EQ(codes, expected);
      const CodeFit fit = kernels.measure_codes(x.data(), n, line);
      EXPECT_NEAR(fit.error, error, 1e-5 * error + 1e-6);
      EXPECT_EQ(fit.sum_c, static_cast<float>(sum_c));
      EXPECT_NEAR(fit.sum_cc, sum_cc, 1e-6 * sum_cc);
      EXPECT_NEAR(fit.sum_xc, sum_xc, 1e-5 * sum_cc + 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ElementwiseLevels,
                         testing::Values(CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni),
                         [](const auto& row) { return std::string(name(row.param)); });

TEST(KvPages, EverySlotReadsBackWhatWasWritten) {
  const int64_t heads = 2, dim = 32;
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
    const int64_t half = dim * kPageTokens * (type == KvType::kBf16 ? 2 : 4);
    std::vector<std::byte> page(static_cast<size_t>(2 * half * heads));
    std::vector<std::vector<float>> k, v;
    for (int64_t slot = 0; slot < kPageTokens; ++slot) {
      k.push_back(normal_floats(heads * dim, static_cast<uint64_t>(slot)));
      v.push_back(normal_floats(heads * dim, static_cast<uint64_t>(slot + 1000)));
      store_kv(type, heads, dim, k.back().data(), v.back().data(), slot, page.data(), page.data() + half, 2 * half);
    }
    KvSegment segment;
    segment.tokens = kPageTokens;
    segment.k = page.data();
    segment.v = page.data() + half;
    segment.head_stride = 2 * half;
    for (int64_t slot = 0; slot < kPageTokens; ++slot) {
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<float> rk(dim), rv(dim);
        load_kv(type, dim, segment, h, slot, rk.data(), rv.data());
        for (int64_t d = 0; d < dim; ++d) {
          const float ek = k[slot][h * dim + d], ev = v[slot][h * dim + d];
          EXPECT_EQ(rk[d], type == KvType::kBf16 ? from_bf16(to_bf16(ek)) : ek);
          EXPECT_EQ(rv[d], type == KvType::kBf16 ? from_bf16(to_bf16(ev)) : ev);
        }
      }
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels
