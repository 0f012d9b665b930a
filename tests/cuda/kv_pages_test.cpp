// Pages of kernels/cuda, emulated, against the CPU's functions.
#include "kernels/cuda/kv_pages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/aligned_buffer.h"
#include "kernels/bf16.h"
#include "kernels/cpu_level.h"
#include "kernels/elementwise.h"
#include "tests/cuda/device_test.h"

namespace smartkv::kernels {
namespace {

std::vector<float> random_rows(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.3f, 1.5f);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(generator);
  return x;
}

AttentionShape shape_of(int64_t n_kv_heads, int64_t head_dim) {
  return {n_kv_heads, n_kv_heads, head_dim, 0.125f, KvType::kBf16};
}

// A dense page of bf16 on "the device".
struct Page {
  AttentionShape shape;
  AlignedBuffer bytes;
  int64_t half;

  explicit Page(const AttentionShape& of)
      : shape(of),
        bytes(static_cast<size_t>(of.n_kv_heads * of.head_dim * kPageTokens * 4)),
        half(of.head_dim * kPageTokens * 2) {
    std::fill_n(bytes.data(), bytes.size(), std::byte{0});
  }
  std::byte* k() { return bytes.data(); }
  std::byte* v() { return bytes.data() + half; }
  KvSegment segment() {
    KvSegment segment;
    segment.tokens = kPageTokens;
    segment.k = k();
    segment.v = v();
    segment.head_stride = 2 * half;
    return segment;
  }
  void fill(uint32_t seed) {
    const int64_t row = shape.n_kv_heads * shape.head_dim;
    const std::vector<float> rows_k = random_rows(kPageTokens * row, seed), rows_v = random_rows(kPageTokens * row, seed + 1);
    for (int64_t t = 0; t < kPageTokens; ++t) {
      store_kv(KvType::kBf16, shape.n_kv_heads, shape.head_dim, &rows_k[static_cast<size_t>(t * row)],
               &rows_v[static_cast<size_t>(t * row)], t, k(), v(), 2 * half);
    }
  }
  // [kPageTokens, head_dim] of a KV head, in an order of slots.
  void load(int64_t head, const uint8_t* slots, std::vector<float>* to_k, std::vector<float>* to_v) {
    to_k->resize(static_cast<size_t>(kPageTokens * shape.head_dim));
    to_v->resize(to_k->size());
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const int64_t slot = slots == nullptr ? t : slots[t], at = t * shape.head_dim;
      load_kv(KvType::kBf16, shape.head_dim, segment(), head, slot, to_k->data() + at, to_v->data() + at);
    }
  }
};

class CudaPages : public testing::TestWithParam<Order> {
 protected:
  void SetUp() override { set_order(GetParam()); }
  void TearDown() override { set_order(Order::kForward); }
  cuda::PageWorkspace workspace;
};

TEST_P(CudaPages, RowsAreWrittenAsOnTheCpu) {
  for (const int64_t dim : {16, 64, 80, 128}) {
    const AttentionShape shape = shape_of(3, dim);
    const int64_t stride = 3 * dim + 16;  // rows of a larger matrix
    for (const auto& [slot, n] : {std::pair<int32_t, int32_t>{0, 1}, {7, 1}, {0, 64}, {63, 1}, {5, 22}, {8, 0}}) {
      for (const bool rotate : {false, true}) {
        const std::vector<float> k = random_rows(n * stride + 1, 1), v = random_rows(n * stride + 1, 2);
        std::vector<float> angles(static_cast<size_t>(n * dim + 1));
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < dim / 2; ++j) {
            angles[static_cast<size_t>(i * dim + j)] = std::cos(0.1f * static_cast<float>(i * j));
            angles[static_cast<size_t>(i * dim + dim / 2 + j)] = std::sin(0.1f * static_cast<float>(i * j));
          }
        }
        Page expected(shape), page(shape);
        expected.fill(5);
        page.fill(5);
        for (int64_t i = 0; i < n; ++i) {
          std::vector<float> row(k.begin() + i * stride, k.begin() + i * stride + 3 * dim);
          const float* const angle = &angles[static_cast<size_t>(i * dim)];
          if (rotate) rope(row.data(), 3, dim, angle, angle + dim / 2);
          store_kv(KvType::kBf16, 3, dim, row.data(), &v[static_cast<size_t>(i * stride)], slot + i, expected.k(), expected.v(),
                   2 * expected.half);
        }
        const cuda::KvWrite write{k.data(), v.data(), stride, rotate ? angles.data() : nullptr, slot, n, page.k(), page.v(),
                                  2 * page.half};
        cuda::write_kv(shape, {&write, 1}, workspace, nullptr);
        finish();
        const auto* const got = reinterpret_cast<const uint16_t*>(page.bytes.data());
        const auto* const wanted = reinterpret_cast<const uint16_t*>(expected.bytes.data());
        for (size_t i = 0; i < page.bytes.size() / 2; ++i) {
          // A rotation adds two products, which may or may not be rounded before: one step of bf16.
          const float close = rotate ? std::abs(from_bf16(wanted[i])) / 128 + 1e-6f : 0.0f;
          ASSERT_NEAR(from_bf16(got[i]), from_bf16(wanted[i]), close) << "head_dim " << dim << " slot " << slot << " n " << n;
        }
      }
    }
  }
}

TEST_P(CudaPages, TokensMoveToOtherSlotsAndPages) {
  for (const int64_t dim : {48, 128}) {
    const AttentionShape shape = shape_of(2, dim);
    Page from(shape), to(shape), expected(shape);
    from.fill(1);
    to.fill(2);
    expected.fill(2);
    std::vector<cuda::SlotMove> moves;
    std::vector<float> k(static_cast<size_t>(dim)), v(k.size());
    using Move = std::tuple<int64_t, int32_t, int32_t>;
    for (const auto& [head, from_slot, to_slot] : {Move{0, 3, 8}, {1, 3, 9}, {0, 63, 0}, {1, 6, 63}, {1, 0, 1}}) {
      const int64_t offset = head * 2 * from.half;
      moves.push_back({from.k() + offset, from.v() + offset, to.k() + offset, to.v() + offset, from_slot, to_slot});
      load_kv(KvType::kBf16, dim, from.segment(), head, from_slot, k.data(), v.data());
      store_kv(KvType::kBf16, 1, dim, k.data(), v.data(), to_slot, expected.k() + offset, expected.v() + offset, 0);
    }
    cuda::move_tokens(shape, moves, workspace, nullptr);
    finish();
    EXPECT_TRUE(std::equal(to.bytes.data(), to.bytes.data() + to.bytes.size(), expected.bytes.data())) << dim;
  }
}

std::vector<QuantizedLayout> layouts(int64_t dim) {
  const auto q = static_cast<uint8_t>(dim / 16);
  std::vector<QuantizedLayout> all = {{{{1, static_cast<uint8_t>(q + 2), static_cast<uint8_t>(3 * q - 6), 3}}, {{3, 5, 1, 7}}},
                                      {{{1, q, q, 0}, static_cast<uint8_t>(2 * q - 1)}, {{2, 6, 3, 0}, 5}},
                                      {{{0, 0, 0, 0}, static_cast<uint8_t>(4 * q)}, {{0, 0, 0, 0}, 16}}};
  for (const int bits : kCodeBits) all.push_back({uniform_runs(dim, bits), uniform_runs(kPageTokens, bits)});
  return all;
}

TEST_P(CudaPages, CodesAreTheCpusAndReadBackAlike) {
  if (detected_cpu_level() < CpuLevel::kAvx2) GTEST_SKIP() << "this CPU does not round sums of products once";
  for (const int64_t dim : {64, 80, 128, 192, 256}) {
    const AttentionShape shape = shape_of(2, dim);
    std::vector<uint8_t> channels(static_cast<size_t>(2 * dim)), slots(2 * kPageTokens);
    for (int64_t head = 0; head < 2; ++head) {
      std::iota(channels.begin() + head * dim, channels.begin() + (head + 1) * dim, uint8_t{0});
      std::shuffle(channels.begin() + head * dim, channels.begin() + (head + 1) * dim, std::mt19937(3));
      std::iota(slots.begin() + head * kPageTokens, slots.begin() + (head + 1) * kPageTokens, uint8_t{0});
      std::shuffle(slots.begin() + head * kPageTokens, slots.begin() + (head + 1) * kPageTokens, std::mt19937(4));
    }
    for (const QuantizedLayout& layout : layouts(dim)) {
      for (const bool ordered : {false, true}) {
        const int64_t bytes = quantized_offsets(layout, dim).total;
        AlignedBuffer blocks(static_cast<size_t>(2 * bytes)), expected(static_cast<size_t>(2 * bytes));
        std::fill_n(blocks.data(), blocks.size(), std::byte{0});
        std::fill_n(expected.data(), expected.size(), std::byte{0});
        Page page(shape);
        page.fill(9);
        std::vector<int32_t> not_finite(1);
        const cuda::EncodeJob job{page.segment(), ordered ? slots.data() : nullptr, ordered ? channels.data() : nullptr, layout,
                                  blocks.data(), bytes};
        cuda::encode_pages(shape, {&job, 1}, not_finite.data(), workspace, nullptr);
        finish();
        EXPECT_EQ(not_finite[0], 0);

        KvSegment coded;
        coded.format = KvSegment::Format::kQuantized;
        coded.tokens = kPageTokens;
        coded.k = blocks.data();
        coded.head_stride = bytes;
        coded.quantized = layout;
        coded.channel_order = job.channel_order;
        std::vector<float> all_k(static_cast<size_t>(2 * kPageTokens * dim)), all_v(all_k.size());
        const cuda::ReadJob read{coded, all_k.data(), all_v.data()};
        cuda::read_pages(shape, {&read, 1}, workspace, nullptr);
        finish();
        for (int64_t head = 0; head < 2; ++head) {
          const uint8_t* const order = ordered ? channels.data() + head * dim : nullptr;
          std::vector<float> k, v, k2(static_cast<size_t>(kPageTokens * dim)), v2(k2.size());
          page.load(head, ordered ? slots.data() + head * kPageTokens : nullptr, &k, &v);
          quantize_page(layout, dim, order, k.data(), v.data(), expected.data() + head * bytes);
          dequantize_page(layout, dim, order, expected.data() + head * bytes, k2.data(), v2.data());
          const auto first = static_cast<std::ptrdiff_t>(head * kPageTokens * dim), last = first + kPageTokens * dim;
          EXPECT_EQ(std::vector<float>(all_k.begin() + first, all_k.begin() + last), k2);
          EXPECT_EQ(std::vector<float>(all_v.begin() + first, all_v.begin() + last), v2);
        }
        EXPECT_TRUE(std::equal(blocks.data(), blocks.data() + blocks.size(), expected.data())) << "head_dim " << dim;
      }
    }
  }
}

TEST_P(CudaPages, OneHeadIsEncodedAndReadAlone) {
  const AttentionShape shape = shape_of(3, 64);
  const QuantizedLayout layout{uniform_runs(64, 4), uniform_runs(kPageTokens, 3)};
  const auto bytes = static_cast<size_t>(quantized_offsets(layout, 64).total);
  Page page(shape);
  page.fill(11);
  AlignedBuffer all(3 * bytes), one(bytes);
  std::vector<int32_t> not_finite(1);
  const cuda::EncodeJob jobs[] = {{page.segment(), nullptr, nullptr, layout, all.data(), static_cast<int64_t>(bytes)},
                                  {page.segment().of_head(1, 1), nullptr, nullptr, layout, one.data(), 0}};
  std::fill_n(all.data(), all.size(), std::byte{0});
  std::fill_n(one.data(), one.size(), std::byte{0});
  cuda::encode_pages(shape, jobs, not_finite.data(), workspace, nullptr);
  finish();
  EXPECT_TRUE(std::equal(one.data(), one.data() + bytes, all.data() + bytes));
  std::vector<float> k(64 * 64), v(64 * 64), expected_k, expected_v;
  const KvSegment second = page.segment().of_head(2, 2);
  const cuda::ReadJob reads[] = {{second, k.data(), nullptr}, {second, nullptr, v.data()}};
  cuda::read_pages(shape, reads, workspace, nullptr);
  finish();
  page.load(2, nullptr, &expected_k, &expected_v);
  EXPECT_EQ(k, expected_k);
  EXPECT_EQ(v, expected_v);
}

TEST_P(CudaPages, CountsColumnsThatAreNotFinite) {
  const AttentionShape shape = shape_of(1, 64);
  const QuantizedLayout layout{uniform_runs(64, 2), uniform_runs(kPageTokens, 8)};
  AlignedBuffer block(static_cast<size_t>(quantized_offsets(layout, 64).total));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Page page(shape);
    page.fill(1);
    reinterpret_cast<uint16_t*>(page.k())[77] = to_bf16(bad);
    std::vector<int32_t> not_finite(1);
    const cuda::EncodeJob job{page.segment(), nullptr, nullptr, layout, block.data(), 0};
    cuda::encode_pages(shape, {&job, 1}, not_finite.data(), workspace, nullptr);
    finish();
    EXPECT_EQ(not_finite[0], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaPages, testing::Values(Order::kForward, Order::kBackward),
                         [](const auto& row) { return row.param == Order::kForward ? "forward" : "backward"; });

TEST(CudaPagesChecks, RefuseWhatDoesNotFit) {
  cuda::PageWorkspace workspace;
  const AttentionShape shape = shape_of(1, 64);
  Page page(shape);
  const cuda::KvWrite write{nullptr, nullptr, 64, nullptr, 60, 5, page.k(), page.v(), 0};
  EXPECT_THROW(cuda::write_kv(shape, {&write, 1}, workspace, nullptr), std::invalid_argument);
  const cuda::SlotMove move{nullptr, nullptr, nullptr, nullptr, 0, 64};
  EXPECT_THROW(cuda::move_tokens(shape, {&move, 1}, workspace, nullptr), std::invalid_argument);
  cuda::EncodeJob job{page.segment(), nullptr, nullptr, {uniform_runs(128, 4), uniform_runs(64, 4)}, nullptr, 0};
  EXPECT_THROW(cuda::encode_pages(shape, {&job, 1}, nullptr, workspace, nullptr), std::invalid_argument);
  job.layout = {uniform_runs(64, 4), uniform_runs(64, 4)};
  job.page.tokens = 63;
  EXPECT_THROW(cuda::encode_pages(shape, {&job, 1}, nullptr, workspace, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
