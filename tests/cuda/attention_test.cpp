// attention() of kernels/cuda on the emulator, compared with the definition and with the CPU's attention.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"
#include "tests/cuda/device_test.h"
#include "tests/kernels/attention_sequence.h"
#include "tests/kernels/width_tables.h"

namespace smartkv::kernels {
namespace {

QuantizedLayout uniform_layout(int64_t dim, int k_bits, int v_bits) {
  return {uniform_runs(dim, k_bits), uniform_runs(kPageTokens, v_bits)};
}

// Returns a layout with all widths in one page, in runs of different lengths.
QuantizedLayout mixed(int64_t dim) {
  const auto q = static_cast<uint8_t>(dim / 16);
  return {{{1, static_cast<uint8_t>(q + 2), static_cast<uint8_t>(3 * q - 6), 3}}, {{3, 5, 1, 7}}};
}

// Returns a layout in which some channels and tokens have no codes.
QuantizedLayout with_dropped_columns(int64_t dim) {
  const auto q = static_cast<uint8_t>(dim / 16);
  return {{{1, q, q, 0}, static_cast<uint8_t>(2 * q - 1)}, {{2, 6, 3, 0}, 5}};
}

std::vector<uint8_t> run_cuda(std::span<const KvSegment> segments, const Sequence& sequence, int64_t n) {
  std::vector<uint8_t> out(static_cast<size_t>(n * sequence.shape.n_heads * sequence.shape.head_dim) * 2, 0xff);
  AttentionTask task = sequence.task(n, out.data());
  task.segments = segments;
  cuda::AttentionWorkspace workspace;
  cuda::attention(sequence.shape, {&task, 1}, workspace, nullptr);
  finish();
  return out;
}
std::vector<uint8_t> run_cuda(const Sequence& sequence, int64_t n) { return run_cuda(sequence.segments, sequence, n); }

// Relative error of bf16. Two roundings contribute at most 2^-9 each: that of the probabilities (at quantized pages, of
// their product with a token's scale), and that of the result. Rounding a query times a page's scales to f16 adds less.
constexpr double kTolerance = 4e-3;

void expect_definition(const Sequence& sequence, int64_t n, const std::string& what, double tolerance = kTolerance) {
  const std::vector<uint8_t> out = run_cuda(sequence, n);
  const double error = relative_error(sequence.reference(n), [&](size_t i) { return element(out, KvType::kBf16, i); });
  EXPECT_LT(error, tolerance) << what;
}

class CudaAttention : public OrderTest {};

TEST_P(CudaAttention, DensePagesEqualTheDefinition) {
  for (const Shape shape :
       {Shape{9, 3, 64}, Shape{4, 4, 128}, Shape{8, 1, 32}, Shape{2, 1, 80}, Shape{3, 1, 16}, Shape{2, 1, 256}}) {
    for (const int64_t tokens : {1, 2, 63, 64, 65, 300}) {
      const Bias bias = tokens % 2 == 0 ? Bias::kNone : Bias::kSome;
      const Sequence sequence(shape, KvType::kBf16, tokens, static_cast<uint64_t>(tokens), {std::nullopt}, bias);
      for (const int64_t n : {int64_t{1}, std::min<int64_t>(tokens, 9)}) {
        expect_definition(sequence, n,
                          std::to_string(shape.n_heads) + "/" + std::to_string(shape.n_kv_heads) + " head_dim " +
                              std::to_string(shape.head_dim) + " tokens " + std::to_string(tokens) + " n " +
                              std::to_string(n));
      }
    }
  }
}

// A page's slots may hold anything where the sequence has no token.
TEST_P(CudaAttention, ReadsNothingPastTheTokens) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{2, 1, 80}}) {
    for (const int64_t tokens : {1, 2, 17, 63, 97}) {
      Sequence sequence(shape, KvType::kBf16, tokens, static_cast<uint64_t>(tokens));
      for (const int64_t n : {int64_t{1}, std::min<int64_t>(tokens, 9)}) {
        poison_slots(sequence, 0);
        const std::vector<uint8_t> expected = run_cuda(sequence, n);
        for (const uint32_t poison : kPoisons) {
          poison_slots(sequence, poison);
          EXPECT_EQ(run_cuda(sequence, n), expected) << tokens << " tokens, " << n << " queries, " << poison;
        }
      }
    }
  }
}

TEST_P(CudaAttention, EveryWidthEqualsTheDefinition) {
  for (const int64_t dim : {32, 64, 80, 128}) {
    std::vector<QuantizedLayout> layouts = {mixed(dim), uniform_layout(dim, 8, 2), uniform_layout(dim, 2, 8),
                                            with_dropped_columns(dim)};
    for (const int bits : kCodeBits) layouts.push_back(uniform_layout(dim, bits, bits));
    for (size_t i = 0; i < layouts.size(); ++i) {
      for (const Bias bias : {Bias::kNone, Bias::kSome}) {
        const Sequence sequence({3, 1, dim}, KvType::kBf16, 4 * kPageTokens + kDenseTail, i, {layouts[i]}, bias);
        expect_definition(sequence, 2, "head_dim " + std::to_string(dim) + " layout " + std::to_string(i));
      }
    }
  }
}

TEST_P(CudaAttention, EveryGroupOfHeadsAndMixOfFormatsEqualsTheDefinition) {
  for (const Shape shape : {Shape{2, 2, 128}, Shape{4, 1, 64}, Shape{3, 1, 192}, Shape{2, 1, 96}, Shape{5, 1, 64},
                            Shape{6, 1, 64}, Shape{7, 1, 64}, Shape{16, 2, 64}, Shape{20, 1, 64}, Shape{70, 1, 64}}) {
    const int64_t dim = shape.head_dim;
    const PageFormats formats = {std::nullopt, mixed(dim), uniform_layout(dim, 4, 4), std::nullopt,
                                 uniform_layout(dim, 8, 3)};
    for (const auto& [tokens, n] : {std::pair<int64_t, int64_t>{64, 1}, {300, 2}, {365, 23}}) {
      const Bias bias = n == 2 ? Bias::kSome : Bias::kNone;
      const Sequence sequence(shape, KvType::kBf16, tokens, static_cast<uint64_t>(tokens), formats, bias);
      expect_definition(sequence, n,
                        std::to_string(shape.n_heads) + "/" + std::to_string(shape.n_kv_heads) + " head_dim " +
                            std::to_string(dim) + " tokens " + std::to_string(tokens) + " n " + std::to_string(n));
    }
  }
}

// The kernel rounds decoded keys and values to bf16, which the definition does not.
TEST_P(CudaAttention, CalibratedPagesEqualTheDefinition) {
  constexpr double kDecodedTolerance = 1e-2;
  ThreadPool threads{1};
  const auto backend = make_cpu_kv_backend(&threads);
  for (const Shape shape : {Shape{3, 1, 64}, Shape{4, 2, 128}, Shape{2, 1, 48}, Shape{4, 2, 16}, Shape{2, 1, 256}}) {
    const int64_t dim = shape.head_dim, all = dim / 4;
    std::vector<WidthTable> tables = {every_width(dim, shape.n_kv_heads, backend),
                                      width_table(dim, shape.n_kv_heads, {}, {}, 3, backend)};
    for (const int bits : kWidths) {
      tables.push_back(width_table(dim, shape.n_kv_heads, {{bits, all}}, {{bits, all}}, 3, backend));
    }
    for (const int64_t wide : {16, 32, 48}) tables.push_back(two_tiers(dim, shape.n_kv_heads, wide, backend));
    for (size_t i = 0; i < tables.size(); ++i) {
      const PageFormats formats = {std::nullopt, uniform_layout(dim, 4, 4), std::nullopt};
      Sequence sequence(shape, KvType::kBf16, 700, i, formats);
      calibrate(sequence, tables[i], {0, 2, 3, 4, 6, 9});
      for (const int64_t n : {1, 23}) {
        expect_definition(sequence, n, "head_dim " + std::to_string(dim) + " table " + std::to_string(i),
                          kDecodedTolerance);
      }
    }
  }
}

// The context is cut at fixed segments. Partial results must merge, whether blocks have few or many rows, and with
// pages of both sizes of shared memory.
TEST_P(CudaAttention, PartsOfTheContextMerge) {
  const PageFormats formats = {std::nullopt,
                               uniform_layout(64, 4, 4),
                               uniform_layout(64, 4, 4),
                               uniform_layout(64, 2, 2),
                               uniform_layout(64, 4, 4),
                               mixed(64),
                               uniform_layout(64, 3, 3),
                               uniform_layout(64, 4, 2),
                               uniform_layout(64, 4, 4)};
  const Sequence sequence({4, 2, 64}, KvType::kBf16, 1701, 1, formats, Bias::kSome);
  expect_definition(sequence, 1, "one query");
  expect_definition(sequence, 8, "a block of few rows");
  const Sequence coded({2, 1, 64}, KvType::kBf16, 1500, 2, {uniform_layout(64, 4, 4)});
  expect_definition(coded, 1, "pages of codes alone");
  const Sequence prompt({2, 1, 64}, KvType::kBf16, 65 * kPageTokens + 3, 3);
  expect_definition(prompt, 40, "a block of many rows");
}

TEST_P(CudaAttention, EqualsTheCpu) {
  ThreadPool pool(1);
  const PageFormats formats = {uniform_layout(128, 4, 4), std::nullopt, mixed(128)};
  const Sequence sequence({8, 2, 128}, KvType::kBf16, 600, 4, formats, Bias::kSome);
  for (const int64_t n : {1, 20}) {
    const std::vector<uint8_t> cpu = run_attention(pool, sequence, n), out = run_cuda(sequence, n);
    std::vector<double> expected(cpu.size() / 2);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<double>(element(cpu, KvType::kBf16, i));
    EXPECT_LT(relative_error(expected, [&](size_t i) { return element(out, KvType::kBf16, i); }), kTolerance) << n;
  }
}

// Each KV head has pages of its own beside the pages of all heads. The result must be as if the head were alone with
// its pages.
TEST_P(CudaAttention, AHeadPassesOverThePagesOfOthers) {
  const Shape shape{6, 3, 64};
  constexpr int64_t kHeads = 3, kQueries = 5, kPages = 11;
  for (const PageFormats& formats : {PageFormats{std::nullopt}, PageFormats{uniform_layout(64, 4, 4)}}) {
    const Sequence sequence(shape, KvType::kBf16, kPages * kPageTokens + 30, 5, formats);
    std::vector<KvSegment> together(sequence.segments.begin(), sequence.segments.begin() + 2);
    std::vector<std::vector<KvSegment>> of_head(kHeads, together);
    for (int64_t page = 2; page < kPages; ++page) {  // head 0 has two of the pages, head 1 seven, head 2 none
      const int64_t head = page < 4 ? 0 : 1;
      const KvSegment& whole = sequence.segments[static_cast<size_t>(page)];
      together.push_back(whole.of_head(head, head));
      of_head[static_cast<size_t>(head)].push_back(whole);
    }
    together.push_back(sequence.segments.back());
    const std::vector<uint8_t> out = run_cuda(together, sequence, kQueries);
    for (int64_t head = 0; head < kHeads; ++head) {
      std::vector<KvSegment>& own = of_head[static_cast<size_t>(head)];
      own.push_back(sequence.segments.back());
      const std::vector<uint8_t> expected = run_cuda(own, sequence, kQueries);
      for (size_t i = 0; i < kQueries * 6 * 64; ++i) {
        if (static_cast<int64_t>(i / 64 % 6 / 2) != head) continue;
        ASSERT_NEAR(element(out, KvType::kBf16, i), element(expected, KvType::kBf16, i), 8e-3) << head << ", " << i;
      }
    }
  }
}

TEST_P(CudaAttention, ATasksBitsDependOnItsOwnSegmentsOnly) {
  const PageFormats formats = {mixed(64), std::nullopt, uniform_layout(64, 3, 2), uniform_layout(64, 4, 8)};
  const Sequence sequence({6, 2, 64}, KvType::kBf16, 900, 7, formats),
      other({6, 2, 64}, KvType::kBf16, 333, 8, formats);
  const size_t row = 6 * 64 * 2;
  std::vector<uint8_t> a(row), b(9 * row), c(row);
  const AttentionTask tasks[] = {sequence.task(1, a.data()), other.task(9, b.data()), other.task(1, c.data())};
  cuda::AttentionWorkspace workspace;
  for (int times = 0; times < 2; ++times) {  // the second time reuses the workspace's memory
    cuda::attention(sequence.shape, tasks, workspace, nullptr);
    finish();
    EXPECT_EQ(a, run_cuda(sequence, 1));
    EXPECT_EQ(b, run_cuda(other, 9));
    EXPECT_EQ(c, run_cuda(other, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaAttention, kOrders, name_of_order);

// The order in which threads run between two barriers must not change a bit.
TEST(CudaAttentionOrder, DecidesNoBit) {
  const PageFormats formats = {mixed(64), std::nullopt, uniform_layout(64, 4, 4)};
  const Sequence sequence({6, 2, 64}, KvType::kBf16, 900, 7, formats, Bias::kSome);
  for (const int64_t n : {1, 30}) {
    set_order(Order::kForward);
    const std::vector<uint8_t> forward = run_cuda(sequence, n);
    set_order(Order::kBackward);
    EXPECT_EQ(forward, run_cuda(sequence, n)) << n;
    set_order(Order::kForward);
  }
}

// Zeros, a constant channel, and a channel far larger than the others must neither overflow nor become NaN.
TEST(CudaAttentionValues, ExtremeColumnsStayFinite) {
  constexpr int64_t kDim = 64;
  const QuantizedLayout layout = mixed(kDim);
  std::vector<float> k(kPageTokens * kDim), v(kPageTokens * kDim, 2.5f), q(kDim, 0.0f);
  for (int64_t t = 0; t < kPageTokens; ++t) k[static_cast<size_t>(t * kDim + 5)] = t == 3 ? 30000.0f : -30000.0f;
  AlignedBuffer page(static_cast<size_t>(quantized_offsets(layout, kDim).total));
  quantize_page(layout, kDim, nullptr, k.data(), v.data(), page.data());
  KvSegment segment;
  segment.format = KvSegment::Format::kQuantized;
  segment.tokens = kPageTokens;
  segment.k = page.data();
  segment.quantized = layout;
  cuda::AttentionWorkspace workspace;
  for (const float query : {0.0f, 1.0f, 1e-38f, -1e4f, 1e30f}) {
    q[5] = query;
    std::vector<uint16_t> out(kDim);
    const AttentionTask task{q.data(), kDim, 1, {&segment, 1}, out.data()};
    cuda::attention({1, 1, kDim, 0.125f, KvType::kBf16}, {&task, 1}, workspace, nullptr);
    finish();
    for (const uint16_t o : out) EXPECT_EQ(from_bf16(o), 2.5f) << query;
  }
}

TEST(CudaAttentionChecks, RefusesWhatItCannotRun) {
  cuda::AttentionWorkspace workspace;
  const auto run = [&](const AttentionShape& shape, std::span<const AttentionTask> tasks) {
    cuda::attention(shape, tasks, workspace, nullptr);
    finish();
  };
  EXPECT_NO_THROW(run({9, 3, 64, 1.0f, KvType::kBf16}, {}));
  EXPECT_THROW(run({9, 3, 64, 1.0f, KvType::kF32}, {}), std::invalid_argument);
  EXPECT_THROW(run({9, 3, 72, 1.0f, KvType::kBf16}, {}), std::invalid_argument);
  EXPECT_THROW(run({9, 3, 64, 1.0f, KvType::kBf16, 100}, {}), std::invalid_argument);  // a sliding window
  EXPECT_THROW(run({9, 3, 272, 1.0f, KvType::kBf16}, {}), std::invalid_argument);
  EXPECT_THROW(run({9, 2, 64, 1.0f, KvType::kBf16}, {}), std::invalid_argument);
  EXPECT_THROW(run({9, 3, 64, 0.0f, KvType::kBf16}, {}), std::invalid_argument);
  KvSegment segment;
  segment.format = KvSegment::Format::kQuantized;
  segment.tokens = 63;
  segment.quantized = uniform_layout(64, 4, 4);
  AttentionTask task;
  task.n = 1;
  task.segments = {&segment, 1};
  EXPECT_THROW(run({1, 1, 64, 1.0f, KvType::kBf16}, {&task, 1}), std::invalid_argument);
  segment.tokens = kPageTokens;
  segment.kv_head = 1;
  EXPECT_THROW(run({1, 1, 64, 1.0f, KvType::kBf16}, {&task, 1}), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
