#include "kernels/calibrated_page.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/attention_sequence.h"
#include "tests/kernels/level_test.h"
#include "tests/kernels/width_tables.h"

namespace smartkv::kernels {
namespace {

class CalibratedPage : public testing::TestWithParam<int64_t> {};

TEST_P(CalibratedPage, ErrorFallsWithBits) {
  const int64_t dim = GetParam();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size()), k2(k.size()), v2(k.size());
  double last = 1;
  for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
    const WidthTable table = width_table(dim, 1, {{bits, dim / 4}}, {{bits, dim / 4}}, 7);
    const float* const middle = table.rotations->middle(3).host;
    // Values around the offsets, so that only the codes remain.
    std::vector<uint8_t> block(static_cast<size_t>(table.bytes));
    std::fill(k2.begin(), k2.end(), 0.0f);
    WidthTable without = table;  // no codes: the offsets alone
    for (auto* side : {&without.heads[0].k, &without.heads[0].v}) side->quads = {};
    without.lay_out();
    decode_calibrated(without, 0, middle, nullptr, k.data(), v.data());
    std::vector<float> rest_k(k.size()), rest_v(k.size());
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] += rest_k[i] = normal(random);
      v[i] += rest_v[i] = 0.1f * normal(random);
    }
    encode_calibrated(table, 0, middle, k.data(), v.data(), 0, block.data());
    decode_calibrated(table, 0, middle, block.data(), k2.data(), v2.data());
    double error_k = 0, error_v = 0;
    for (size_t i = 0; i < k.size(); ++i) {
      error_k += std::pow(k[i] - k2[i], 2) / static_cast<double>(k.size());
      error_v += std::pow(v[i] - v2[i], 2) / static_cast<double>(k.size()) * 100;
    }
    // Least squared errors of codes for normal values (Max 1960), from 5 bits on of uniform ones over 64 of them.
    const double expected = bits == 1   ? 0.363
                            : bits == 2 ? 0.118
                            : bits == 3 ? 0.0345
                            : bits == 4 ? 0.0095
                            : bits == 5 ? 0.0024
                            : bits == 6 ? 0.00065
                                        : 0.00004;
    EXPECT_LT(error_k, 1.1 * expected) << bits;
    EXPECT_LT(error_v, 1.1 * expected) << bits;
    EXPECT_LT(error_k, 0.45 * last) << bits;
    last = error_k;
    EXPECT_EQ(table.bytes, (2 * dim + 63) / 64 * 64 + 2 * kPageTokens * dim * bits / 8);
  }
}

TEST_P(CalibratedPage, RefusesWhatIsNotFinite) {
  const int64_t dim = GetParam();
  const WidthTable table = width_table(dim, 1, {{4, dim / 4}}, {{8, 1}, {2, 2}}, 7);
  std::vector<uint8_t> block(static_cast<size_t>(table.bytes));
  const std::vector<float> good(static_cast<size_t>(kPageTokens * dim), 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = good;
    x[static_cast<size_t>(5 * dim + table.heads[0].v.order[0])] = bad;
    const float* const middle = table.rotations->middle(0).host;
    EXPECT_THROW(encode_calibrated(table, 0, middle, x.data(), good.data(), 0, block.data()), std::invalid_argument);
    EXPECT_THROW(encode_calibrated(table, 0, middle, good.data(), x.data(), 0, block.data()), std::invalid_argument);
  }
  const std::vector<float> zero(good.size(), 0.0f);
  EXPECT_NO_THROW(
      encode_calibrated(table, 0, table.rotations->middle(0).host, zero.data(), zero.data(), 0, block.data()));
}

// Returns the table of one KV head in which all channels have codes of 4 bits for 16 wide tokens, and of these bits for
// the others.
WidthTable with_wide_tokens(int64_t dim, int k_bits, int v_bits) {
  WidthTable table = width_table(dim, 1, {{k_bits, dim / 4}}, {{v_bits, dim / 4}}, 7);
  table.wide_tokens = 16;
  table.heads[0].k.wide_quads[3] = table.heads[0].v.wide_quads[3] = static_cast<uint8_t>(dim / 4);
  table.lay_out();
  return table;
}

TEST_P(CalibratedPage, WideTokensHaveWiderCodes) {
  const int64_t dim = GetParam();
  WidthTable table = with_wide_tokens(dim, 2, 1);
  EXPECT_EQ(table.bytes, calibrated_block_bytes(dim / 2, 3 * dim / 4, 16, dim / 2, 8 * dim / 4));
  const float* const middle = table.rotations->middle(3).host;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const uint64_t wide = random_mask(16, random);
  std::vector<uint8_t> block(static_cast<size_t>(table.bytes));
  std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size()), k2(k.size()), v2(k.size());
  WidthTable without = width_table(dim, 1, {}, {}, 7);  // the offsets alone
  decode_calibrated(without, 0, middle, nullptr, k.data(), v.data());
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] += normal(random);
    v[i] += normal(random);
  }
  encode_calibrated(table, 0, middle, k.data(), v.data(), wide, block.data());
  EXPECT_EQ(wide_tokens_of(table, table.heads[0], block.data()), wide);
  decode_calibrated(table, 0, middle, block.data(), k2.data(), v2.data());
  double error_k[2] = {}, error_v[2] = {};
  for (int64_t i = 0; i < kPageTokens * dim; ++i) {
    const auto tier = static_cast<size_t>(wide >> (i / dim) & 1), at = static_cast<size_t>(i);
    const double tokens = tier == 1 ? 16 : 48;
    error_k[tier] += std::pow(k[at] - k2[at], 2) / (tokens * static_cast<double>(dim));
    error_v[tier] += std::pow(v[at] - v2[at], 2) / (tokens * static_cast<double>(dim));
  }
  EXPECT_LT(error_k[0], 1.15 * 0.118);
  EXPECT_LT(error_v[0], 1.15 * 0.363);
  EXPECT_LT(error_k[1], 1.15 * 0.0095);
  EXPECT_LT(error_v[1], 1.15 * 0.0095);
  EXPECT_THROW(encode_calibrated(table, 0, middle, k.data(), v.data(), wide & (wide - 1), block.data()),
               std::invalid_argument);
  table.heads[0].k.wide_quads = {};  // narrower than the other tokens
  EXPECT_THROW(table.lay_out(), std::invalid_argument);
}

TEST_P(CalibratedPage, ColumnsThatShareTheByteOfAScaleMayDifferInSize) {
  const int64_t dim = GetParam();
  const WidthTable table = with_wide_tokens(dim, 3, 3);
  const float* const middle = table.rotations->middle(3).host;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  WidthTable without = width_table(dim, 1, {}, {}, 7);  // the offsets alone
  std::vector<uint8_t> block(static_cast<size_t>(table.bytes));
  std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size()), k2(k.size()), v2(k.size());
  decode_calibrated(without, 0, middle, nullptr, k.data(), v.data());
  std::vector<float> size(static_cast<size_t>(dim));  // of a channel of V: from 1 to a 32nd in each group
  for (int64_t c = 0; c < dim; ++c) {
    size[table.heads[0].v.order[static_cast<size_t>(c)]] = std::exp2(-static_cast<float>(c % 16) / 3);
  }
  for (int64_t i = 0; i < kPageTokens * dim; ++i) {
    v[static_cast<size_t>(i)] += size[static_cast<size_t>(i % dim)] * normal(random);
  }
  encode_calibrated(table, 0, middle, k.data(), v.data(), random_mask(16, random), block.data());
  decode_calibrated(table, 0, middle, block.data(), k2.data(), v2.data());
  for (int64_t d = 0; d < dim; ++d) {
    double error = 0;
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const auto at = static_cast<size_t>(t * dim + d);
      error += std::pow((v[at] - v2[at]) / size[static_cast<size_t>(d)], 2) / static_cast<double>(kPageTokens);
    }
    EXPECT_LT(error, 3 * 0.0345) << "channel of size " << size[static_cast<size_t>(d)];
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, CalibratedPage, testing::Values(16, 48, 64, 96, 128, 192, 256));

class CalibratedAttention : public LevelTest {
 protected:
  ThreadPool pool{3};
};

TEST_P(CalibratedAttention, EqualsTheDefinition) {
  for (const auto& [shape, wide] : {std::pair{Shape{9, 3, 64}, 0},
                                    {Shape{2, 2, 128}, 0},
                                    {Shape{4, 1, 32}, 0},
                                    {Shape{3, 1, 192}, 0},
                                    {Shape{8, 2, 96}, 0},
                                    {Shape{9, 3, 64}, 16},
                                    {Shape{2, 2, 128}, 48},
                                    {Shape{3, 1, 192}, 32}}) {
    const WidthTable table =
        wide == 0 ? every_width(shape.head_dim, shape.n_kv_heads) : two_tiers(shape.head_dim, shape.n_kv_heads, wide);
    for (const auto& [tokens, n] : {std::pair<int64_t, int64_t>{150, 1}, {700, 2}, {900, 40}}) {
      Sequence sequence(shape, type(), tokens, static_cast<uint64_t>(tokens));
      calibrate(sequence, table, {1, 2, 4, 5, 6, 7, 9});
      const std::vector<uint8_t> out = run_attention(pool, sequence, n);
      EXPECT_LT(relative_error(sequence.reference(n), [&](size_t e) { return element(out, type(), e); }),
                type() == KvType::kBf16 ? 0.01 : 1e-3)
          << shape.n_heads << "/" << shape.n_kv_heads << " head_dim " << shape.head_dim << " wide " << wide
          << " tokens " << tokens << " n " << n;
    }
  }
}

TEST_P(CalibratedAttention, ARowsBitsDependOnItsOwnSequenceOnly) {
  for (const WidthTable& table : {every_width(64, 3), two_tiers(64, 3, 16)}) {
    Sequence sequence({9, 3, 64}, type(), 1100, 7);
    calibrate(sequence, table, {1, 3, 4, 5, 6, 7, 8, 10});
    ThreadPool one(1);
    const std::vector<uint8_t> all = run_attention(pool, sequence, 37);
    EXPECT_EQ(all, run_attention(one, sequence, 37));
    for (const int64_t n : {1, 2, 5, 16, 33}) {
      const std::vector<uint8_t> some = run_attention(pool, sequence, n);
      EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
    }
  }
}

// A window ends within a page. The tokens of a page with two tiers are in order for it.
TEST_P(CalibratedAttention, AWindowSeesTheLastTokens) {
  const WidthTable table = two_tiers(64, 3, 16);
  Sequence sequence({9, 3, 64}, type(), 700, 9);
  calibrate(sequence, table, {1, 2, 3, 4, 5, 6, 7});
  sequence.shape.window = 300;
  const std::vector<uint8_t> out = run_attention(pool, sequence, 20);
  EXPECT_LT(relative_error(sequence.reference(20), [&](size_t e) { return element(out, type(), e); }),
            type() == KvType::kBf16 ? 0.01 : 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Levels, CalibratedAttention, kLevels, name_of_level);

// Every level must make the same bytes.
TEST(CalibratedPageLevels, EncodeAlike) {
  const int64_t dim = 64;
  const WidthTable table = every_width(dim, 1);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kPageTokens * dim));
  for (float& value : x) value = normal(random);
  std::vector<uint8_t> expected;
  for (const CpuLevel level : {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni}) {
    if (level > detected_cpu_level()) continue;
    set_cpu_level(level);
    std::vector<uint8_t> block(static_cast<size_t>(table.bytes));
    encode_calibrated(table, 0, table.rotations->middle(2).host, x.data(), x.data(), 0, block.data());
    if (expected.empty()) expected = block;
    EXPECT_EQ(block, expected) << name(level);
  }
  set_cpu_level(detected_cpu_level());
}

}  // namespace
}  // namespace smartkv::kernels
