// attention() over quantized pages, alone and beside dense ones.
#include <cstring>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/attention_sequence.h"
#include "tests/kernels/level_test.h"

namespace smartkv::kernels {
namespace {

QuantizedLayout uniform(int64_t dim, int k_bits, int v_bits) {
  return {uniform_runs(dim, k_bits), uniform_runs(kPageTokens, v_bits)};
}

// Returns a layout with all widths in one page. `odd`: the runs are no multiples of a vector.
QuantizedLayout mixed(int64_t dim, bool odd) {
  const auto q = static_cast<uint8_t>(dim / 16);
  if (odd) return {{{1, static_cast<uint8_t>(q + 2), static_cast<uint8_t>(3 * q - 6), 3}}, {{3, 5, 1, 7}}};
  return {{{q, q, q, q}}, {{4, 4, 4, 4}}};
}

// Returns a layout in which some channels and tokens have no codes.
QuantizedLayout with_dropped_columns(int64_t dim) {
  const auto q = static_cast<uint8_t>(dim / 16);
  return {{{1, q, q, 0}, static_cast<uint8_t>(2 * q - 1)}, {{2, 6, 3, 0}, 5}};
}

class QuantizedAttention : public LevelTest {
 protected:
  // Relative error. f32: probabilities become 16-bit integers. bf16: rounds the result, and probabilities at dense
  // pages, by at most 2^-9 each.
  double tolerance() const { return type() == KvType::kBf16 ? 4e-3 : 5e-4; }

  ThreadPool pool{2};
};

TEST_P(QuantizedAttention, EveryWidthEqualsTheDefinition) {
  for (const int64_t dim : {32, 64, 80, 128}) {
    std::vector<QuantizedLayout> layouts = {mixed(dim, false), mixed(dim, true), uniform(dim, 8, 2), uniform(dim, 2, 8),
                                            with_dropped_columns(dim)};
    for (const int bits : kCodeBits) layouts.push_back(uniform(dim, bits, bits));
    for (size_t i = 0; i < layouts.size(); ++i) {
      for (const Bias bias : {Bias::kNone, Bias::kSome}) {
        const Sequence sequence({3, 1, dim}, type(), 4 * kPageTokens + kDenseTail, i, {layouts[i]}, bias);
        const std::vector<uint8_t> out = run_attention(pool, sequence, 2);
        EXPECT_LT(relative_error(sequence.reference(2), [&](size_t e) { return element(out, type(), e); }), tolerance())
            << "head_dim " << dim << " layout " << i << " bias " << (bias == Bias::kSome);
      }
    }
  }
}

TEST_P(QuantizedAttention, EveryGroupOfHeadsAndMixOfFormatsEqualsTheDefinition) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{2, 2, 128}, Shape{4, 1, 64}, Shape{3, 1, 192}, Shape{8, 2, 96}}) {
    const int64_t dim = shape.head_dim;
    const PageFormats formats = {std::nullopt, mixed(dim, true), uniform(dim, 4, 4), std::nullopt, uniform(dim, 8, 3)};
    for (const auto& [tokens, n] : {std::pair<int64_t, int64_t>{64, 1}, {300, 2}, {400, 40}}) {
      const Bias bias = n == 2 ? Bias::kSome : Bias::kNone;
      const Sequence sequence(shape, type(), tokens, static_cast<uint64_t>(tokens), formats, bias);
      const std::vector<uint8_t> out = run_attention(pool, sequence, n);
      EXPECT_LT(relative_error(sequence.reference(n), [&](size_t e) { return element(out, type(), e); }), tolerance())
          << shape.n_heads << "/" << shape.n_kv_heads << " head_dim " << dim << " tokens " << tokens << " n " << n;
    }
  }
}

TEST_P(QuantizedAttention, ARowsBitsDependOnItsOwnSequenceOnly) {
  const PageFormats formats = {mixed(64, true), std::nullopt, uniform(64, 3, 2), uniform(64, 4, 8)};
  const Sequence sequence({9, 3, 64}, type(), 1100, 7, formats), other({9, 3, 64}, type(), 333, 8, formats);
  ThreadPool one(1), five(5);
  const std::vector<uint8_t> all = run_attention(pool, sequence, 37);
  const size_t row = all.size() / 37;
  EXPECT_EQ(all, run_attention(one, sequence, 37));
  EXPECT_EQ(all, run_attention(five, sequence, 37));
  for (const int64_t n : {1, 2, 5, 16, 33}) {
    const std::vector<uint8_t> some = run_attention(pool, sequence, n);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
  }
  std::vector<uint8_t> a(row), b(3 * row);
  const AttentionTask tasks[] = {sequence.task(1, a.data()), other.task(3, b.data())};
  AttentionScratch scratch;
  attention(pool, sequence.shape, tasks, scratch);
  EXPECT_EQ(0, std::memcmp(a.data(), all.data() + 36 * row, row));
  EXPECT_EQ(b, run_attention(one, other, 3));
}

INSTANTIATE_TEST_SUITE_P(Levels, QuantizedAttention, kLevels, name_of_level);

// Products are summed as integers, so instructions that differ only there must give the same bits. Dense pages of bf16
// differ, because a tile adds its 32 products in another order.
TEST(QuantizedAttentionLevels, AmxGivesTheBitsOfVnni) {
  if (detected_cpu_level() < CpuLevel::kAmx) GTEST_SKIP() << "this CPU lacks the level";
  ThreadPool pool(2);
  for (const int64_t dim : {48, 64, 192}) {
    const PageFormats formats = {mixed(dim, true), uniform(dim, 8, 8), with_dropped_columns(dim), std::nullopt};
    const Sequence sequence({6, 2, dim}, KvType::kF32, 700, 3, formats, Bias::kSome);
    for (const int64_t n : {1, 3, 40}) {
      set_cpu_level(CpuLevel::kAmx);
      const std::vector<uint8_t> amx = run_attention(pool, sequence, n);
      set_cpu_level(CpuLevel::kAvx512Vnni);
      EXPECT_EQ(amx, run_attention(pool, sequence, n)) << "head_dim " << dim << " queries " << n;
      set_cpu_level(detected_cpu_level());
    }
  }
}

// Zeros, a constant channel, and a channel far larger than the others must neither overflow nor become NaN.
TEST(QuantizedAttentionValues, ExtremeColumnsStayFinite) {
  const int64_t dim = 64;
  ThreadPool pool(1);
  const QuantizedLayout layout = mixed(dim, false);
  std::vector<float> k(kPageTokens * dim), v(kPageTokens * dim, 2.5f), q(dim, 0.0f), out(dim);
  for (int64_t t = 0; t < kPageTokens; ++t) k[t * dim + 5] = t == 3 ? 30000.0f : -30000.0f;
  AlignedBuffer page(static_cast<size_t>(quantized_offsets(layout, dim).total));
  quantize_page(layout, dim, nullptr, k.data(), v.data(), page.data());
  KvSegment segment;
  segment.format = KvSegment::Format::kQuantized;
  segment.tokens = kPageTokens;
  segment.k = page.data();
  segment.quantized = layout;
  for (const float query : {0.0f, 1.0f, 1e-38f, -1e4f}) {
    q[5] = query;
    const AttentionTask task{q.data(), dim, 1, {&segment, 1}, out.data()};
    AttentionScratch scratch;
    attention(pool, {1, 1, dim, 0.125f, KvType::kF32}, {&task, 1}, scratch);
    for (const float o : out) EXPECT_NEAR(o, 2.5f, 1e-5f) << query;
  }
}

TEST(QuantizedAttentionValues, RefusesPagesOfAnotherShape) {
  ThreadPool pool(1);
  AttentionScratch scratch;
  KvSegment segment;
  segment.format = KvSegment::Format::kQuantized;
  segment.tokens = kPageTokens;
  segment.quantized = uniform(64, 4, 4);
  AttentionTask task;
  task.segments = {&segment, 1};
  EXPECT_NO_THROW(attention(pool, {1, 1, 64, 1.0f, KvType::kF32}, {&task, 1}, scratch));
  EXPECT_THROW(attention(pool, {1, 1, 128, 1.0f, KvType::kF32}, {&task, 1}, scratch), std::invalid_argument);
  EXPECT_THROW(attention(pool, {1, 1, 32, 1.0f, KvType::kF32}, {&task, 1}, scratch), std::invalid_argument);
  EXPECT_THROW(attention(pool, {1, 1, 64, 0.0f, KvType::kF32}, {&task, 1}, scratch), std::invalid_argument);
  segment.tokens = 63;
  EXPECT_THROW(attention(pool, {1, 1, 64, 1.0f, KvType::kF32}, {&task, 1}, scratch), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
