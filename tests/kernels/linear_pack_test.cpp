#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu_level.h"
#include "kernels/half.h"
#include "kernels/linear.h"
#include "kernels/linear_format.h"

namespace smartkv::kernels {
namespace {

std::vector<float> random_weights(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns the root mean square of the difference, relative to that of the weights.
double relative_error(WeightType type, std::vector<float> rows, int64_t k) {
  PackedMatrix matrix = make_packed(type, 16, k);
  pack_lanes(matrix, 0, rows.data());
  double error = 0, power = 0;
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t n = 0; n < 16; ++n) {
    unpack_row(matrix, n, row.data());
    for (int64_t i = 0; i < k; ++i) {
      const double w = rows[static_cast<size_t>(n * k + i)];
      error += std::pow(row[static_cast<size_t>(i)] - w, 2);
      power += w * w;
    }
  }
  return std::sqrt(error / power);
}

TEST(LinearPackTest, FormatsLoseNoMoreThanTheirBits) {
  const int64_t k = 1024;
  const std::vector<float> rows = random_weights(16 * k, 1);
  EXPECT_EQ(relative_error(WeightType::kF32, rows, k), 0.0);
  EXPECT_LT(relative_error(WeightType::kBf16, rows, k), 0.002);
  EXPECT_LT(relative_error(WeightType::kInt8, rows, k), 0.006);
  for (CpuLevel level : {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni}) {
    if (level > detected_cpu_level()) {
      RecordProperty("not_available", std::string(name(level)));
      continue;
    }
    set_cpu_level(level);
    EXPECT_LT(relative_error(WeightType::kInt4, rows, k), 0.072) << name(level);
  }
  set_cpu_level(detected_cpu_level());
}

TEST(LinearPackTest, Int4OnItsOwnGridIsExact) {
  std::vector<float> rows(16 * 32);
  for (int64_t lane = 0; lane < 16; ++lane) {
    for (int64_t k = 0; k < 32; ++k) rows[static_cast<size_t>(lane * 32 + k)] = 0.25f * static_cast<float>(k % 16) - 1;
  }
  EXPECT_EQ(relative_error(WeightType::kInt4, rows, 32), 0.0);
}

TEST(LinearPackTest, ConstantAndZeroGroupsStayWhatTheyAre) {
  std::vector<float> rows(16 * 32, 0.5f);
  EXPECT_EQ(relative_error(WeightType::kInt4, rows, 32), 0.0);
  EXPECT_LT(relative_error(WeightType::kInt8, rows, 32), 0.0005);
  for (const WeightType type : {WeightType::kInt4, WeightType::kInt8}) {
    PackedMatrix matrix = make_packed(type, 16, 32);
    const std::vector<float> zeros(16 * 32);
    pack_lanes(matrix, 0, zeros.data());
    std::vector<float> row(32, 1.0f);
    unpack_row(matrix, 5, row.data());
    for (const float value : row) EXPECT_EQ(value, 0.0f);
  }
}

TEST(LinearPackTest, KeepsIntegerBlocksOfGgufWithoutLoss) {
  std::mt19937 generator(5);
  for (const WeightType type : {WeightType::kInt4, WeightType::kInt5, WeightType::kInt8}) {
    const uint32_t levels = 1u << levels_of(type).bits();
    for (const Minimums minimums : {Minimums::kStored, Minimums::kCentred}) {
      PackedMatrix matrix = make_packed(type, 33, 96, minimums);
      const float scale = half_to_float(0x2a67);  // about 0.05; any half would do
      const float minimum = -static_cast<float>(levels / 2) * scale;
      for (int64_t row = 0; row < 33; ++row) {
        std::vector<uint8_t> q(96);
        for (uint8_t& level : q) level = static_cast<uint8_t>(generator() % levels);
        for (int64_t k_group = 0; k_group < 3; ++k_group) {
          pack_group(matrix, row / 16, k_group, row % 16, q.data() + 32 * k_group, scale, minimum);
        }
        std::vector<uint8_t> again(96);
        for (int64_t k_group = 0; k_group < 3; ++k_group) {
          float found_scale = 0, found_minimum = 0;
          unpack_group(matrix, row / 16, k_group, row % 16, again.data() + 32 * k_group, &found_scale, &found_minimum);
          EXPECT_EQ(found_scale, scale);
          EXPECT_EQ(found_minimum, minimum);
        }
        EXPECT_EQ(again, q);
        std::vector<float> unpacked(96);
        unpack_row(matrix, row, unpacked.data());
        for (size_t i = 0; i < q.size(); ++i) {
          ASSERT_NEAR(unpacked[i], scale * (static_cast<float>(q[i]) - static_cast<float>(levels / 2)), 1e-6)
              << name(type) << " row " << row << " input " << i;
        }
      }
    }
  }
}

TEST(LinearPackTest, KeepsCodedBlocksWithoutLoss) {
  std::mt19937 generator(6);
  const std::map<WeightType, int64_t> bits = {{WeightType::kInt2, 2625}, {WeightType::kInt3, 3625},
                                              {WeightType::kInt4, 4625}, {WeightType::kInt5, 5625},
                                              {WeightType::kInt6, 6625}, {WeightType::kIq4, 4375}};
  for (const auto& [type, bits_per_1000] : bits) {
    const Levels levels = levels_of(type);
    PackedMatrix matrix = make_packed(type, 33, 512, Minimums::kCoded);
    EXPECT_EQ(matrix.bytes() * 8, bits_per_1000 * 48 * 512 / 1000) << name(type);
    std::vector<CodedBlock> blocks(66);
    for (size_t i = 0; i < blocks.size(); ++i) {
      CodedBlock& block = blocks[i];
      for (uint8_t& level : block.q) level = static_cast<uint8_t>(generator() % (1u << levels.bits()));
      for (auto& codes : block.codes) {
        for (int8_t& code : codes) code = static_cast<int8_t>(static_cast<int>(generator() % 256) - 128);
      }
      block.factors[0] = half_to_float(0x0a67);
      block.factors[1] = -half_to_float(0x0b31);
      if (type == WeightType::kIq4) {
        block.factors[1] = 0;
        std::fill_n(block.codes[1], 8, int8_t{0});
      }
      pack_block(matrix, static_cast<int64_t>(i / 2) / 16, static_cast<int64_t>(i % 2),
                 static_cast<int64_t>(i / 2) % 16, block);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const CodedBlock& block = blocks[i];
      CodedBlock again;
      unpack_block(matrix, static_cast<int64_t>(i / 2) / 16, static_cast<int64_t>(i % 2),
                   static_cast<int64_t>(i / 2) % 16, &again);
      EXPECT_EQ(std::memcmp(&again, &block, sizeof block), 0) << name(type) << " block " << i;
      std::vector<float> row(512);
      unpack_row(matrix, static_cast<int64_t>(i / 2), row.data());
      for (size_t k = 0; k < 256; ++k) {
        const size_t g = k / 32, half = k % 32 / 16;
        const uint8_t level = block.q[k];
        const float q = levels.table == nullptr ? level : levels.table[level],
                    centred = q - static_cast<float>(levels.centre);
        const float first = block.factors[0] * static_cast<float>(block.codes[0][g]),
                    second = block.factors[1] * static_cast<float>(block.codes[1][g]);
        const auto pair = static_cast<uint8_t>(block.codes[half][g]);
        const bool halves = type == WeightType::kInt6 || type == WeightType::kInt3;
        const float expected = halves                     ? (half == 0 ? first : second) * centred
                               : type == WeightType::kIq4 ? first * centred
                               : type == WeightType::kInt2
                                   ? block.factors[0] * (pair & 15) * q + block.factors[1] * (pair >> 4)
                                   : first * q + second;
        EXPECT_EQ(row[256 * (i % 2) + k], expected) << name(type);
      }
    }
  }
}

TEST(LinearPackTest, KeepsFourBitFloatsWithoutLoss) {
  uint8_t q[32], again[32];
  for (size_t i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(i * 7 % 16);
  const float fp4[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  float scale, minimum, row[32];
  PackedMatrix mxfp4 = make_packed(WeightType::kMxfp4, 16, 32, Minimums::kCentred);
  for (const int exponent : {-128, -127, -40, 0, 100, 126}) {
    const float power = std::ldexp(1.0f, exponent);
    pack_group(mxfp4, 0, 0, 3, q, power, -12 * power);
    unpack_group(mxfp4, 0, 0, 3, again, &scale, &minimum);
    EXPECT_EQ(scale, power);
    EXPECT_EQ(std::memcmp(q, again, 32), 0);
    unpack_row(mxfp4, 3, row);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(row[i], 2 * power * fp4[q[i]]);
  }
  EXPECT_THROW(pack_group(mxfp4, 0, 0, 3, q, 1.001f, -12.012f), std::invalid_argument);
  PackedMatrix nvfp4 = make_packed(WeightType::kNvfp4, 16, 32, Minimums::kCentred);
  for (const float first : {0.0f, 0.0009765625f, 0.4375f, 120.0f, 224.0f}) {
    pack_group(nvfp4, 0, 0, 5, q, first, 1.5f);
    unpack_group(nvfp4, 0, 0, 5, again, &scale, &minimum);
    EXPECT_EQ(scale, first);
    EXPECT_EQ(minimum, 1.5f);
    unpack_row(nvfp4, 5, row);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(row[i], 2 * (i < 16 ? first : 1.5f) * fp4[q[i]]);
  }
  EXPECT_THROW(pack_group(nvfp4, 0, 0, 5, q, 240.0f, 1.0f), std::invalid_argument);
  EXPECT_THROW(pack_group(nvfp4, 0, 0, 5, q, 1.01f, 1.0f), std::invalid_argument);
}

// 4-bit integers with any zero must fit into 8 bits without loss.
TEST(LinearPackTest, ShiftsIntegersToTheirCentre) {
  std::vector<uint8_t> q(32);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i % 16);
  PackedMatrix matrix = make_packed(WeightType::kInt8, 16, 32, Minimums::kCentred);
  for (int64_t zero = 0; zero < 16; ++zero) {
    pack_group(matrix, 0, 0, zero, q.data(), 0.25f, -0.25f * static_cast<float>(zero));
    std::vector<float> row(32);
    unpack_row(matrix, zero, row.data());
    for (size_t i = 0; i < q.size(); ++i)
      EXPECT_EQ(row[i], 0.25f * (static_cast<float>(q[i]) - static_cast<float>(zero)));
  }
  PackedMatrix int4 = make_packed(WeightType::kInt4, 16, 32, Minimums::kCentred);
  EXPECT_NO_THROW(pack_group(int4, 0, 0, 0, q.data(), 0.25f, -2.0f));
  EXPECT_NO_THROW(pack_group(int4, 0, 0, 0, q.data(), 0.0f, 0.0f));
  EXPECT_THROW(pack_group(int4, 0, 0, 0, q.data(), 0.25f, -1.75f), std::invalid_argument);
  EXPECT_THROW(pack_group(int4, 0, 0, 0, q.data(), 0.25f, -1.9f), std::invalid_argument);
  EXPECT_THROW(pack_group(int4, 0, 0, 0, q.data(), 0.0f, 1.0f), std::invalid_argument);
  EXPECT_THROW(pack_lanes(int4, 0, std::vector<float>(512).data()), std::invalid_argument);
}

TEST(LinearPackTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(make_packed(WeightType::kBf16, 16, 3), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kInt8, 16, 48), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kInt4, 0, 32), std::invalid_argument);
  const std::vector<uint8_t> q(32, 16);
  PackedMatrix int4 = make_packed(WeightType::kInt4, 16, 32);
  EXPECT_THROW(pack_group(int4, 0, 0, 0, q.data(), 1.0f, 0.0f), std::invalid_argument);  // a level beyond 15
  PackedMatrix int8 = make_packed(WeightType::kInt8, 16, 32);
  EXPECT_THROW(pack_group(int8, 0, 0, 0, q.data(), 1.0f, -70000.0f), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kInt8, 16, 256, Minimums::kCoded), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kInt6, 16, 256), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kInt6, 16, 128, Minimums::kCoded), std::invalid_argument);
  EXPECT_THROW(make_packed(WeightType::kBf16, 16, 256, Minimums::kCentred), std::invalid_argument);
  PackedMatrix int6 = make_packed(WeightType::kInt6, 16, 256, Minimums::kCoded);
  EXPECT_THROW(pack_group(int6, 0, 0, 0, q.data(), 1.0f, 0.0f), std::invalid_argument);
  EXPECT_THROW(pack_lanes(int6, 0, std::vector<float>(4096).data()), std::invalid_argument);
  CodedBlock block{};
  block.q[7] = 64;
  EXPECT_THROW(pack_block(int6, 0, 0, 0, block), std::invalid_argument);
  block.q[7] = 63;
  EXPECT_THROW(pack_block(int8, 0, 0, 0, block), std::invalid_argument);
  EXPECT_NO_THROW(pack_block(int6, 0, 0, 0, block));
  block.factors[0] = 1e-9f;  // not representable in f16
  EXPECT_THROW(pack_block(int6, 0, 0, 0, block), std::invalid_argument);
  PackedMatrix bf16 = make_packed(WeightType::kBf16, 16, 32);
  EXPECT_THROW(pack_group(bf16, 0, 0, 0, q.data(), 1.0f, 0.0f), std::invalid_argument);
}

TEST(LinearPackTest, EveryHalfSurvivesTheWayToFloatAndBack) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    if ((bits & 0x7c00u) == 0x7c00u) continue;  // infinities saturate, NaN may change its payload
    ASSERT_EQ(float_to_half(half_to_float(bits)), bits);
  }
  EXPECT_EQ(half_to_float(0x3555), 0.333251953125f);
  EXPECT_EQ(half_to_float(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(float_to_half(1.0f + std::ldexp(1.0f, -11)), 0x3c00);  // a tie goes to even
  EXPECT_EQ(float_to_half(1.0f + 3 * std::ldexp(1.0f, -11)), 0x3c02);
  EXPECT_EQ(float_to_half(1e6f), 0x7bff);
}

}  // namespace
}  // namespace smartkv::kernels
