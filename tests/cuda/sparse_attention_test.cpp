// Attention over indexed pages on the emulated device, compared with the definition and with the CPU's.
#include <cmath>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/cuda/attention.h"
#include "kernels/thread_pool.h"
#include "tests/cuda/device_test.h"
#include "tests/kernels/indexed_sequence.h"

namespace smartkv::kernels {
namespace {

std::vector<uint8_t> run_cuda_sparse(const Sequence& sequence, int64_t n, size_t batch = size_t{1} << 30) {
  std::vector<uint8_t> out(static_cast<size_t>(n * sequence.shape.n_heads * sequence.shape.head_dim) * 2, 0xff);
  const AttentionTask task = sequence.task(n, out.data());
  cuda::AttentionWorkspace workspace;
  workspace.sparse.most_bytes = batch;
  cuda::attention(sequence.shape, {&task, 1}, workspace, nullptr);
  finish();
  return out;
}

std::vector<float> mass_of(const Sequence& sequence, int64_t n, size_t batch = size_t{1} << 30) {
  return run_mass(sequence, n, [&](const AttentionMassTask& task) {
    cuda::AttentionWorkspace workspace;
    workspace.sparse.most_bytes = batch;
    cuda::attention_mass(sequence.shape, {&task, 1}, workspace, nullptr);
    finish();
  });
}

std::vector<float> cpu_mass_of(const Sequence& sequence, int64_t n) {
  ThreadPool pool(1);
  AttentionScratch scratch;
  return run_mass(sequence, n, [&](const AttentionMassTask& task) {
    attention_mass(pool, sequence.shape, {&task, 1}, scratch);
  });
}

// Expects the device and the CPU to read the same tokens and to give them the same mass. Tokens with a promise within
// rounding of a step's end may differ.
void expect_as_on_the_cpu(const Sequence& sequence, int64_t n, const std::string& what) {
  const std::vector<float> found = mass_of(sequence, n), expected = cpu_mass_of(sequence, n);
  ASSERT_EQ(found.size(), expected.size());
  size_t otherwise = 0;
  double error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    otherwise += (found[i] > 0) != (expected[i] > 0);
    if (found[i] > 0 && expected[i] > 0)
      error = std::max(error, std::abs(1.0 - static_cast<double>(found[i] / expected[i])));
  }
  EXPECT_LE(otherwise, found.size() / 50) << what;
  EXPECT_LT(error, 0.02) << what;
  ThreadPool pool(1);
  const std::vector<uint8_t> out = run_cuda_sparse(sequence, n), cpu = run_attention(pool, sequence, n);
  std::vector<double> wanted;
  for (size_t i = 0; i < out.size() / 2; ++i) wanted.push_back(static_cast<double>(element(cpu, KvType::kBf16, i)));
  EXPECT_LT(relative_error(wanted, [&](size_t i) { return element(out, KvType::kBf16, i); }), 2e-2) << what;
}

class CudaSparseAttention : public OrderTest {};

TEST_P(CudaSparseAttention, ReadsWhatPromisesMost) {
  using Case = std::tuple<Shape, int32_t, int>;  // with the tokens read of a page, and the bits of rows
  for (const auto& [shape, read, bits] : {Case{{9, 3, 64}, 1, 0},
                                          {{9, 3, 64}, 63, 0},
                                          {{9, 3, 64}, 16, 8},
                                          {{4, 2, 128}, 16, 0},
                                          {{4, 2, 128}, 16, 4},
                                          {{2, 1, 80}, 16, 4},
                                          {{3, 1, 16}, 16, 8},
                                          {{2, 2, 256}, 16, 4}}) {
    const IndexedSequence indexed(shape, KvType::kBf16, read, bits);
    constexpr int64_t kQueries = 2;
    const double error =
        reading_error(indexed, mass_of(indexed.sequence, kQueries), run_cuda_sparse(indexed.sequence, kQueries));
    EXPECT_LT(error, 6e-3) << shape.head_dim << " " << read << " " << bits;
  }
}

TEST_P(CudaSparseAttention, IsTheCpus) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{36, 1, 16}, Shape{2, 1, 80}}) {  // 36 heads: in three blocks
    for (const int bits : {0, 4, 8}) {
      const IndexedSequence indexed(shape, KvType::kBf16, 10, bits);
      expect_as_on_the_cpu(indexed.sequence, 2, std::to_string(shape.head_dim) + " " + std::to_string(bits));
    }
  }
}

// Dense and quantized pages stand before, between and behind indexed ones, and some of these are read whole. The tail
// has few tokens, of which the first queries see none.
TEST_P(CudaSparseAttention, OtherPagesLieBetween) {
  IndexedSequence indexed({6, 2, 64}, KvType::kBf16, 7, 8, 641);
  const QuantizedLayout four{uniform_runs(64, 4), uniform_runs(64, 4)};
  const Sequence others({6, 2, 64}, KvType::kBf16, 641, 5, {std::nullopt, four});
  for (const size_t i : {0, 3, 4}) indexed.sequence.segments[i] = others.segments[i];
  indexed.sequence.segments[6].read = kPageTokens;
  expect_as_on_the_cpu(indexed.sequence, 3, "between");
}

TEST_P(CudaSparseAttention, ReadingAllEqualsTheDensePagesBitForBit) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{2, 1, 128}}) {
    const Sequence dense(shape, KvType::kBf16, 700, 5);
    const IndexedSequence indexed(shape, KvType::kBf16, kPageTokens);
    EXPECT_EQ(run_cuda_sparse(indexed.sequence, 1), run_cuda_sparse(dense, 1));
    EXPECT_EQ(mass_of(indexed.sequence, 3), mass_of(dense, 3));
  }
}

// Among equal promises the first tokens are read. If these are all tokens of a page, its mean has no weight.
TEST_P(CudaSparseAttention, TiesAreTheFirst) {
  constexpr int32_t kRead = 9;
  IndexedSequence indexed({4, 2, 64}, KvType::kBf16, kRead);
  std::fill(indexed.sequence.q.begin(), indexed.sequence.q.end(), 0.0f);
  const std::vector<float> mass = mass_of(indexed.sequence, 1);
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t t = 0; t < kIndexedPages * kPageTokens; ++t) {
      const bool reads = t < kPageTokens + kRead * (kIndexedPages - 1);
      ASSERT_NEAR(mass[static_cast<size_t>(head * 700 + t)] * 700, reads ? 1.0f : 0.0f, 1e-5f) << t;
    }
  }
}

TEST_P(CudaSparseAttention, ARowsBitsDependOnItsOwnSegmentsOnly) {
  const IndexedSequence indexed({9, 3, 64}, KvType::kBf16, 16), other({9, 3, 64}, KvType::kBf16, 5, 4, 650, 8);
  const Sequence dense({9, 3, 64}, KvType::kBf16, 333, 9);
  const std::vector<uint8_t> all = run_cuda_sparse(indexed.sequence, 3);
  EXPECT_EQ(all, run_cuda_sparse(indexed.sequence, 3, 1));  // each query is a batch of its own
  EXPECT_EQ(mass_of(indexed.sequence, 3), mass_of(indexed.sequence, 3, 1));
  const size_t row = all.size() / 3;
  std::vector<uint8_t> a(row), b(3 * row), c(2 * row), d(row);
  const AttentionTask tasks[] = {indexed.sequence.task(1, a.data()), dense.task(3, b.data()),
                                 other.sequence.task(2, c.data()), dense.task(1, d.data())};
  cuda::AttentionWorkspace workspace;
  for (const size_t batch : {size_t{1} << 30, size_t{1} << 20}) {
    workspace.sparse.most_bytes = batch;
    cuda::attention(dense.shape, tasks, workspace, nullptr);
    finish();
    EXPECT_TRUE(std::equal(a.begin(), a.end(), all.end() - static_cast<std::ptrdiff_t>(row)));
    EXPECT_EQ(b, run_cuda_sparse(dense, 3));
    EXPECT_EQ(c, run_cuda_sparse(other.sequence, 2));
    EXPECT_EQ(d, run_cuda_sparse(dense, 1));
  }
}

TEST_P(CudaSparseAttention, QueriesThatAreNotFiniteHarmNobodyElse) {
  IndexedSequence indexed({9, 3, 64}, KvType::kBf16, 16);
  std::fill(indexed.sequence.q.end() - 9 * 64, indexed.sequence.q.end(), NAN);
  const std::vector<uint8_t> out = run_cuda_sparse(indexed.sequence, 2);
  for (size_t i = 0; i < 9 * 64; ++i) EXPECT_TRUE(std::isfinite(element(out, KvType::kBf16, i)));
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaSparseAttention, kOrders, name_of_order);

TEST(CudaSparseAttentionChecks, RefuseWhatTheyCannotRead) {
  IndexedSequence indexed({9, 3, 64}, KvType::kBf16, 16);
  indexed.sequence.segments[2].read = 0;
  EXPECT_THROW(run_cuda_sparse(indexed.sequence, 1), std::invalid_argument);
  indexed.sequence.segments[2].read = 16;
  indexed.sequence.segments[2].row_bits = 3;
  EXPECT_THROW(mass_of(indexed.sequence, 1), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
