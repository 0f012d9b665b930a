#include "kernels/sparse_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/attention_kernels.h"
#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/indexed_sequence.h"
#include "tests/kernels/level_test.h"

namespace smartkv::kernels {
namespace {

std::vector<float> mass_of(const Sequence& sequence, int64_t n, int threads = 2) {
  ThreadPool pool(threads);
  AttentionScratch scratch;
  return run_mass(sequence, n, [&](const AttentionMassTask& task) {
    attention_mass(pool, sequence.shape, {&task, 1}, scratch);
  });
}

class SparseAttention : public LevelTest {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) <= detected_cpu_level()) set_cpu_level(std::get<0>(GetParam()));
  }
};

TEST_P(SparseAttention, ReadingAllEqualsTheDensePagesBitForBit) {
  ThreadPool pool(2);
  for (const Shape shape : {Shape{9, 3, 64}, Shape{4, 4, 128}, Shape{2, 1, 80}, Shape{52, 1, 16}}) {
    const Sequence dense(shape, type(), 700, 5);
    const IndexedSequence indexed(shape, type(), kPageTokens);
    for (const int64_t n : {1, 21}) {
      EXPECT_EQ(run_attention(pool, indexed.sequence, n), run_attention(pool, dense, n)) << shape.head_dim << " " << n;
      EXPECT_EQ(mass_of(indexed.sequence, n), mass_of(dense, n)) << shape.head_dim << " " << n;
    }
  }
}

TEST_P(SparseAttention, ReadsWhatPromisesMost) {
  ThreadPool pool(2);
  for (const Shape shape : {Shape{9, 3, 64}, Shape{4, 2, 128}, Shape{2, 1, 80}}) {
    for (const auto& [read, bits] : {std::pair{1, 0}, {16, 0}, {63, 0}, {16, 8}, {16, 4}}) {
      const IndexedSequence indexed(shape, type(), read, bits);
      constexpr int64_t kQueries = 3;
      const double error =
          reading_error(indexed, mass_of(indexed.sequence, kQueries), run_attention(pool, indexed.sequence, kQueries));
      EXPECT_LT(error, type() == KvType::kBf16 ? 6e-3 : 2e-6) << shape.head_dim << " " << read << " " << bits;
    }
  }
}

TEST_P(SparseAttention, ARowsBitsDependOnItsOwnSequenceOnly) {
  const IndexedSequence indexed({9, 3, 64}, type(), 16), other({9, 3, 64}, type(), 5, 4, 650, 8);
  const Sequence dense({9, 3, 64}, type(), 333, 9);
  ThreadPool one(1), two(2), five(5);
  const std::vector<uint8_t> all = run_attention(two, indexed.sequence, 37);
  const size_t row = all.size() / 37;
  EXPECT_EQ(all, run_attention(one, indexed.sequence, 37));
  EXPECT_EQ(all, run_attention(five, indexed.sequence, 37));
  EXPECT_EQ(mass_of(indexed.sequence, 5, 1), mass_of(indexed.sequence, 5, 3));
  for (const int64_t n : {1, 2, 16}) {
    const std::vector<uint8_t> some = run_attention(two, indexed.sequence, n);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
  }
  std::vector<uint8_t> a(row), b(3 * row), c(2 * row);
  const AttentionTask tasks[] = {indexed.sequence.task(1, a.data()), dense.task(3, b.data()),
                                 other.sequence.task(2, c.data())};
  AttentionScratch scratch;
  for (int round = 0; round < 2; ++round) {
    attention(two, dense.shape, tasks, scratch);
    EXPECT_EQ(0, std::memcmp(a.data(), all.data() + 36 * row, row));
    EXPECT_EQ(b, run_attention(one, dense, 3));
    EXPECT_EQ(c, run_attention(one, other.sequence, 2));
  }
}

TEST_P(SparseAttention, RowsOfCodesAreAsNearAsTheirStep) {
  const int64_t dim = 80;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size());
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = normal(random) + (i % static_cast<size_t>(dim) == 7 ? 40.0f : 0.0f);  // a channel far from 0
    v[i] = normal(random);
  }
  std::fill_n(k.begin() + 3 * dim, dim, 0.0f);
  for (const int bits : {4, 8}) {
    AlignedBuffer rows(static_cast<size_t>(indexed_rows_bytes(type(), dim, bits)));
    encode_rows(type(), dim, bits, k.data(), v.data(), rows.data());
    std::vector<IndexedRow> gathered(kPageTokens);
    const auto* at = reinterpret_cast<const char*>(rows.data());
    for (int64_t t = 0; t < kPageTokens; ++t) {
      gathered[static_cast<size_t>(t)] = {at + means_offset(type(), dim, bits), at + t * row_bytes(type(), dim, bits),
                                          bits};
    }
    AlignedBuffer page(static_cast<size_t>(kPageTokens * row_bytes(type(), dim, 0)));
    cpu_kernels().attention->gather({1, 1, dim, 1, type()}, gathered, page.data());
    const auto value = [&](size_t i) {
      return type() == KvType::kF32 ? page.as<float>()[i] : from_bf16(page.as<uint16_t>()[i]);
    };
    for (int64_t t = 0; t < kPageTokens; ++t) {
      float steps[2];
      std::memcpy(steps, gathered[static_cast<size_t>(t)].codes + 2 * dim * bits / 8, sizeof steps);
      for (int64_t d = 0; d < dim; ++d) {
        const bool pairs = type() == KvType::kBf16;
        const auto k_at = static_cast<size_t>(pairs ? (d / 2 * kPageTokens + t) * 2 + d % 2 : d * kPageTokens + t);
        const auto v_at =
            static_cast<size_t>(kPageTokens * dim + (pairs ? (t / 2 * dim + d) * 2 + t % 2 : t * dim + d));
        const float exact_k = k[static_cast<size_t>(t * dim + d)], exact_v = v[static_cast<size_t>(t * dim + d)];
        const float rounding = pairs ? 0x1p-8f : 1e-6f;
        EXPECT_NEAR(value(k_at), exact_k, steps[0] * 0.5001f + std::abs(exact_k) * rounding)
            << t << " " << d << " " << bits;
        EXPECT_NEAR(value(v_at), exact_v, steps[1] * 0.5001f + std::abs(exact_v) * rounding)
            << t << " " << d << " " << bits;
      }
      if (t == 3) continue;
      EXPECT_LT(steps[0], 10.0f / static_cast<float>((1 << bits) - 1));  // the channel far from 0 costs nothing
    }
  }
}

TEST_P(SparseAttention, KeysThatAreNotFiniteHarmNobodyElse) {
  IndexedSequence indexed({9, 3, 64}, type(), 16);
  std::vector<float> q = indexed.sequence.q;
  std::fill(q.end() - 9 * 64, q.end(), NAN);
  indexed.sequence.q = q;
  ThreadPool pool(2);
  const std::vector<uint8_t> out = run_attention(pool, indexed.sequence, 2);
  for (size_t i = 0; i < 9 * 64; ++i) EXPECT_TRUE(std::isfinite(element(out, type(), i)));
}

TEST(PromiseSteps, AreWhatIsGreaterThanTheirBounds) {
  std::vector<float> promises{0.0f, 1e-30f, 0x1p-27f, 0x1p-26f, 0.1f, 1.0f, 63.9f, 64.0f, 71.0f, INFINITY, NAN};
  for (int step = 0; step < kPromiseSteps; ++step) {
    const float bound = promise_below(step);
    promises.insert(promises.end(), {std::nextafter(bound, 0.0f), bound, std::nextafter(bound, 100.0f)});
  }
  for (const float promise : promises) {
    const int of = promise_step(std::bit_cast<uint32_t>(promise));
    for (int steps = 0; steps < kPromiseSteps; ++steps) {
      // A promise above the greatest bound belongs to the first step, yet it is greater than that step's bound.
      EXPECT_EQ(promise > promise_below(steps), of < steps || promise > 64.0f) << promise << " " << steps;
    }
  }
}

TEST(SparseAttentionErrors, PagesThatNoKernelReads) {
  ThreadPool pool(1);
  const auto error = [&](const auto& change) -> std::string {
    IndexedSequence indexed({9, 3, 64}, KvType::kBf16, 16);
    change(indexed.sequence);
    try {
      run_attention(pool, indexed.sequence, 1);
      return "no error";
    } catch (const std::invalid_argument& thrown) {
      return thrown.what();
    }
  };
  EXPECT_EQ(error([](Sequence&) {}), "no error");
  const std::string expected =
      "attention: expected an indexed page of all KV heads, without bias or sliding window, and 1 to 64 tokens to "
      "read, "
      "found ";
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].read = 0; }), expected + "0");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].read = 65; }), expected + "65");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].kv_head = 1; }), expected + "16");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].row_bits = 5; }),
            "attention: expected an indexed page with rows of 4 or 8 bits, or dense rows (0), found 5");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].bias = s.k.data(); }), expected + "16");
  EXPECT_EQ(error([](Sequence& s) { s.shape.window = 300; }), expected + "64");
}

INSTANTIATE_TEST_SUITE_P(Levels, SparseAttention, kLevels, name_of_level);

}  // namespace
}  // namespace smartkv::kernels
