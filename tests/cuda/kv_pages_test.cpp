// Operations on pages of kernels/cuda, on the emulator, compared with the CPU's functions.
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
#include "kernels/elementwise.h"
#include "kernels/indexed_rows.h"
#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"
#include "tests/cuda/device_test.h"
#include "tests/kernels/width_tables.h"

namespace smartkv::kernels {
namespace {

AttentionShape shape_of(int64_t n_kv_heads, int64_t head_dim) {
  return {n_kv_heads, n_kv_heads, head_dim, 0.125f, KvType::kBf16};
}

// Returns the places of rows: f32 [n, head_dim] each.
std::vector<TokenPlace> row_places(std::vector<float>& k, std::vector<float>& v, int64_t head_dim) {
  std::vector<TokenPlace> places;
  for (int64_t at = 0; at < std::ssize(k); at += head_dim) {
    places.push_back({k.data() + at, v.data() + at, TokenPlace::kRow});
  }
  return places;
}

// A dense page of bf16 that stands for one on the device.
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
  // Returns the places of all KV heads. `slots` is the order of slots; null means from 0 on.
  std::vector<TokenPlace> places(const uint8_t* slots) {
    std::vector<TokenPlace> places;
    for (int64_t i = 0; i < shape.n_kv_heads * kPageTokens; ++i) {
      const int64_t offset = i / kPageTokens * 2 * half;
      places.push_back(
          {k() + offset, v() + offset, slots == nullptr ? static_cast<int32_t>(i % kPageTokens) : slots[i]});
    }
    return places;
  }
  void fill(uint32_t seed) {
    const int64_t row = shape.n_kv_heads * shape.head_dim;
    const std::vector<float> rows_k = random_values(kPageTokens * row, seed),
                             rows_v = random_values(kPageTokens * row, seed + 1);
    for (int64_t t = 0; t < kPageTokens; ++t) {
      store_kv(KvType::kBf16, shape.n_kv_heads, shape.head_dim, &rows_k[static_cast<size_t>(t * row)],
               &rows_v[static_cast<size_t>(t * row)], t, k(), v(), 2 * half);
    }
  }
  // Reads a KV head in an order of slots. to_k, to_v: [kPageTokens, head_dim].
  void load(int64_t head, const uint8_t* slots, std::vector<float>* to_k, std::vector<float>* to_v) {
    to_k->resize(static_cast<size_t>(kPageTokens * shape.head_dim));
    to_v->resize(to_k->size());
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const int64_t slot = slots == nullptr ? t : slots[t], at = t * shape.head_dim;
      load_kv(KvType::kBf16, shape.head_dim, segment(), head, slot, to_k->data() + at, to_v->data() + at);
    }
  }
};

class CudaPages : public OrderTest {
 protected:
  cuda::PageWorkspace workspace;
};

TEST_P(CudaPages, RowsAreWrittenAsOnTheCpu) {
  for (const int64_t dim : {16, 64, 80, 128}) {
    const AttentionShape shape = shape_of(3, dim);
    const int64_t stride = 3 * dim + 16;  // rows of a larger matrix
    for (const auto& [slot, n] : {std::pair<int32_t, int32_t>{0, 1}, {7, 1}, {0, 64}, {63, 1}, {5, 22}, {8, 0}}) {
      for (const bool rotate : {false, true}) {
        const std::vector<float> k = random_values(n * stride + 1, 1), v = random_values(n * stride + 1, 2);
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
          store_kv(KvType::kBf16, 3, dim, row.data(), &v[static_cast<size_t>(i * stride)], slot + i, expected.k(),
                   expected.v(), 2 * expected.half);
        }
        const cuda::KvWrite write{k.data(), v.data(), stride,       rotate ? angles.data() : nullptr, slot, n,
                                  page.k(), page.v(), 2 * page.half};
        cuda::write_kv(shape, {&write, 1}, workspace, nullptr);
        finish();
        const auto* const got = reinterpret_cast<const uint16_t*>(page.bytes.data());
        const auto* const wanted = reinterpret_cast<const uint16_t*>(expected.bytes.data());
        for (size_t i = 0; i < page.bytes.size() / 2; ++i) {
          // A rotation adds two products, which may or may not be rounded before. This makes one step of bf16.
          const float close = rotate ? std::abs(from_bf16(wanted[i])) / 128 + 1e-6f : 0.0f;
          ASSERT_NEAR(from_bf16(got[i]), from_bf16(wanted[i]), close)
              << "head_dim " << dim << " slot " << slot << " n " << n;
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
    std::vector<TokenMove> moves;
    std::vector<float> k(static_cast<size_t>(dim)), v(k.size());
    using Move = std::tuple<int64_t, int32_t, int32_t>;
    for (const auto& [head, from_slot, to_slot] : {Move{0, 3, 8}, {1, 3, 9}, {0, 63, 0}, {1, 6, 63}, {1, 0, 1}}) {
      const int64_t offset = head * 2 * from.half;
      moves.push_back({{from.k() + offset, from.v() + offset, from_slot}, {to.k() + offset, to.v() + offset, to_slot}});
      load_kv(KvType::kBf16, dim, from.segment(), head, from_slot, k.data(), v.data());
      store_kv(KvType::kBf16, 1, dim, k.data(), v.data(), to_slot, expected.k() + offset, expected.v() + offset, 0);
    }
    cuda::move_tokens(dim, moves, workspace, nullptr);
    finish();
    EXPECT_TRUE(std::equal(to.bytes.data(), to.bytes.data() + to.bytes.size(), expected.bytes.data())) << dim;
  }
}

std::vector<QuantizedLayout> layouts(int64_t dim) {
  const auto q = static_cast<uint8_t>(dim / 16);
  std::vector<QuantizedLayout> all = {
      {{{1, static_cast<uint8_t>(q + 2), static_cast<uint8_t>(3 * q - 6), 3}}, {{3, 5, 1, 7}}},
      {{{1, q, q, 0}, static_cast<uint8_t>(2 * q - 1)}, {{2, 6, 3, 0}, 5}},
      {{{0, 0, 0, 0}, static_cast<uint8_t>(4 * q)}, {{0, 0, 0, 0}, 16}}};
  for (const int bits : kCodeBits) all.push_back({uniform_runs(dim, bits), uniform_runs(kPageTokens, bits)});
  return all;
}

TEST_P(CudaPages, CodesAreTheCpusAndReadBackAlike) {
  SMARTKV_NEEDS_FUSED_PRODUCTS();
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
        const std::vector<TokenPlace> places = page.places(ordered ? slots.data() : nullptr);
        const PageEncode job{{places}, 2, layout, ordered ? channels.data() : nullptr, blocks.data(), bytes};
        cuda::encode_pages(dim, {&job, 1}, workspace, nullptr);
        finish();

        KvSegment coded;
        coded.format = KvSegment::Format::kQuantized;
        coded.tokens = kPageTokens;
        coded.k = blocks.data();
        coded.head_stride = bytes;
        coded.quantized = layout;
        coded.channel_order = job.channel_order;
        std::vector<float> all_k(static_cast<size_t>(2 * kPageTokens * dim)), all_v(all_k.size());
        const PageRead read{coded, 0, 2, 0, kPageTokens, all_k.data(), all_v.data(), kPageTokens * dim};
        cuda::read_pages(dim, {&read, 1}, workspace, nullptr);
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

// Rows of f32 must become the same quantized page as a dense page of them. A quantized page that is encoded again must
// become the quantized page of its decoded values.
TEST_P(CudaPages, RowsAndCodesAreEncodedToo) {
  SMARTKV_NEEDS_FUSED_PRODUCTS();
  constexpr int64_t kDim = 64, kValues = kPageTokens * kDim;
  const QuantizedLayout wide{uniform_runs(kDim, 8), uniform_runs(kPageTokens, 4)};
  const QuantizedLayout narrow{uniform_runs(kDim, 3), uniform_runs(kPageTokens, 2)};
  const int64_t wide_bytes = quantized_offsets(wide, kDim).total, narrow_bytes = quantized_offsets(narrow, kDim).total;
  std::vector<float> k = random_values(2 * kValues, 5), v = random_values(2 * kValues, 6);
  std::vector<uint8_t> order(2 * kDim);
  for (int64_t i = 0; i < 2 * kDim; ++i) order[static_cast<size_t>(i)] = static_cast<uint8_t>(kDim - 1 - i % kDim);
  AlignedBuffer first(static_cast<size_t>(2 * wide_bytes)), second(static_cast<size_t>(2 * narrow_bytes));
  AlignedBuffer expected(first.size()), expected_second(second.size());
  for (AlignedBuffer* page : {&first, &second, &expected, &expected_second})
    std::fill_n(page->data(), page->size(), std::byte{0});
  KvSegment codes;
  codes.format = KvSegment::Format::kQuantized;
  codes.tokens = kPageTokens;
  codes.k = first.data();
  codes.head_stride = wide_bytes;
  codes.quantized = wide;
  codes.channel_order = order.data();
  const std::vector<TokenPlace> places = row_places(k, v, kDim);
  const PageEncode rows{{places}, 2, wide, order.data(), first.data(), wide_bytes};
  const PageEncode again{{{}, &codes}, 2, narrow, order.data(), second.data(), narrow_bytes};
  cuda::encode_pages(kDim, {&rows, 1}, workspace, nullptr);
  cuda::encode_pages(kDim, {&again, 1}, workspace, nullptr);
  finish();
  std::vector<float> k2(kValues), v2(kValues);
  for (int64_t head = 0; head < 2; ++head) {
    quantize_page(wide, kDim, order.data(), &k[static_cast<size_t>(head * kValues)],
                  &v[static_cast<size_t>(head * kValues)], expected.data() + head * wide_bytes);
    dequantize_page(wide, kDim, order.data(), expected.data() + head * wide_bytes, k2.data(), v2.data());
    quantize_page(narrow, kDim, order.data(), k2.data(), v2.data(), expected_second.data() + head * narrow_bytes);
  }
  EXPECT_TRUE(std::equal(first.data(), first.data() + first.size(), expected.data()));
  EXPECT_TRUE(std::equal(second.data(), second.data() + second.size(), expected_second.data()));
}

// Rows of indexed pages from every kind of source, beside their index.
TEST_P(CudaPages, CalibratedCodesAreTheCpusAndReadBackAlike) {
  SMARTKV_NEEDS_FUSED_PRODUCTS();
  ThreadPool threads{1};
  const auto backend = make_cpu_kv_backend(&threads);
  for (const int64_t dim : {16, 48, 64, 128, 256}) {
    std::vector<WidthTable> tables = {every_width(dim, 2, backend)};
    for (const int bits : kWidths) {
      tables.push_back(width_table(dim, 2, {{bits, dim / 4}}, {{bits, dim / 4}}, 3, backend));
    }
    for (const int64_t wide : {16, 32, 48}) tables.push_back(two_tiers(dim, 2, wide, backend));
    std::mt19937 random(4);
    for (const WidthTable& table : tables) {
      AlignedBuffer blocks(static_cast<size_t>(table.bytes)), expected(blocks.size());
      std::fill_n(blocks.data(), blocks.size(), std::byte{0});
      std::fill_n(expected.data(), expected.size(), std::byte{0});
      Page page(shape_of(2, dim));
      page.fill(9);
      const std::vector<TokenPlace> places = page.places(nullptr);
      PageEncode job;
      job.source.tokens = places;
      job.n_heads = 2;
      job.blocks = blocks.data();
      job.table = &table;
      job.middle = table.rotations->middle(70);
      const uint64_t wide[] = {random_mask(table.wide_tokens, random), random_mask(table.wide_tokens, random)};
      job.wide = wide;
      cuda::encode_pages(dim, {&job, 1}, workspace, nullptr);
      std::vector<float> all_k(static_cast<size_t>(2 * kPageTokens * dim)), all_v(all_k.size());
      const PageRead read{KvSegment::calibrated(job.blocks, job.table, job.middle),
                          0,
                          2,
                          0,
                          kPageTokens,
                          all_k.data(),
                          all_v.data(),
                          kPageTokens * dim};
      cuda::read_pages(dim, {&read, 1}, workspace, nullptr);
      finish();
      for (int64_t head = 0; head < 2; ++head) {
        std::vector<float> k, v;
        page.load(head, nullptr, &k, &v);
        std::byte* const block = expected.data() + table.heads[static_cast<size_t>(head)].first;
        encode_calibrated(table, head, job.middle.host, k.data(), v.data(), wide[head], block);
        decode_calibrated(table, head, job.middle.host, block, k.data(), v.data());
        for (size_t i = 0; i < k.size(); ++i) {
          const size_t at = static_cast<size_t>(head * kPageTokens * dim) + i;
          ASSERT_NEAR(all_k[at], k[i], 1e-5 * (1 + std::abs(k[i]))) << dim;
          ASSERT_NEAR(all_v[at], v[i], 1e-5 * (1 + std::abs(v[i]))) << dim;
        }
      }
      const auto same = std::mismatch(blocks.data(), blocks.data() + blocks.size(), expected.data());
      EXPECT_TRUE(same.first == blocks.data() + blocks.size()) << dim << " byte " << same.first - blocks.data();
    }
  }
}

TEST_P(CudaPages, RowsOfIndexedPagesAreTheCpus) {
  for (const int64_t dim : {16, 80, 128}) {
    const AttentionShape shape = shape_of(2, dim);
    Page page(shape);
    page.fill(13);
    std::vector<float> all_k = random_values(2 * kPageTokens * dim, 5), all_v = random_values(2 * kPageTokens * dim, 6);
    const std::vector<TokenPlace> slots = page.places(nullptr), in_rows = row_places(all_k, all_v, dim);
    QuantizedLayout index{uniform_runs(dim, 2), {}};
    index.v.dropped = kPageTokens / 4;
    const int64_t block = quantized_offsets(index, dim).total;
    for (const int bits : {0, 4, 8}) {
      for (const bool dense : {true, false}) {
        const int64_t bytes = indexed_rows_bytes(KvType::kBf16, dim, bits);
        AlignedBuffer blocks(static_cast<size_t>(2 * block)), rows(static_cast<size_t>(2 * bytes)),
            expected(rows.size());
        const PageSource source{dense ? slots : in_rows};
        const PageEncode job{source, 2, index, nullptr, blocks.data(), block, rows.data(), bits};
        cuda::encode_pages(dim, {&job, 1}, workspace, nullptr);
        finish();
        for (int64_t head = 0; head < 2; ++head) {
          std::vector<float> k(all_k.begin() + head * kPageTokens * dim,
                               all_k.begin() + (head + 1) * kPageTokens * dim);
          std::vector<float> v(all_v.begin() + head * kPageTokens * dim,
                               all_v.begin() + (head + 1) * kPageTokens * dim);
          if (dense) page.load(head, nullptr, &k, &v);
          encode_rows(KvType::kBf16, dim, bits, k.data(), v.data(), expected.data() + head * bytes);
        }
        EXPECT_TRUE(std::equal(rows.data(), rows.data() + rows.size(), expected.data()))
            << dim << " " << bits << " " << dense;
      }
    }
  }
}

TEST_P(CudaPages, APartIsReadAlone) {
  const AttentionShape shape = shape_of(3, 64);
  Page page(shape);
  page.fill(11);
  std::vector<float> k(2 * 5 * 64 + 64, -1.0f), v(5 * 64), expected_k, expected_v;
  const PageRead reads[] = {{page.segment(), 1, 2, 7, 5, k.data(), nullptr, 5 * 64 + 64},
                            {page.segment(), 2, 1, 7, 5, nullptr, v.data(), 0}};
  cuda::read_pages(64, reads, workspace, nullptr);
  finish();
  for (const int64_t head : {1, 2}) {
    page.load(head, nullptr, &expected_k, &expected_v);
    const auto* const from = k.data() + (head - 1) * (5 * 64 + 64);
    EXPECT_TRUE(std::equal(from, from + 5 * 64, expected_k.data() + 7 * 64));
  }
  EXPECT_TRUE(std::equal(v.begin(), v.end(), expected_v.begin() + 7 * 64));
  EXPECT_EQ(k[5 * 64], -1.0f);
}

TEST_P(CudaPages, RowsMoveIntoSlotsAndPagesAreCopiedAndZeroed) {
  const AttentionShape shape = shape_of(2, 80);
  Page page(shape), expected(shape), copy(shape);
  page.fill(1);
  expected.fill(1);
  copy.fill(2);
  std::vector<float> k = random_values(80, 3), v = random_values(80, 4);
  const int64_t offset = 2 * page.half;  // offset of KV head 1
  const TokenMove move{row_places(k, v, 80)[0], {page.k() + offset, page.v() + offset, 63}};
  store_kv(KvType::kBf16, 1, 80, k.data(), v.data(), 63, expected.k() + offset, expected.v() + offset, 0);
  cuda::move_tokens(80, {&move, 1}, workspace, nullptr);
  const auto bytes = static_cast<size_t>(offset);
  const PageCopy copies[] = {{page.bytes.data() + bytes, copy.bytes.data(), bytes},
                             {nullptr, copy.bytes.data() + bytes, bytes}};
  cuda::copy_pages(copies, workspace, nullptr);
  finish();
  EXPECT_TRUE(std::equal(page.bytes.data(), page.bytes.data() + page.bytes.size(), expected.bytes.data()));
  EXPECT_TRUE(std::equal(copy.bytes.data(), copy.bytes.data() + bytes, expected.bytes.data() + bytes));
  EXPECT_TRUE(std::all_of(copy.bytes.data() + bytes, copy.bytes.data() + 2 * bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
}

// Attention over these pages then shows it, as over a dense page.
TEST_P(CudaPages, ColumnsThatAreNotFiniteAreNotANumber) {
  const AttentionShape shape = shape_of(1, 64);
  for (const int bits : kCodeBits) {
    const QuantizedLayout layout{uniform_runs(64, bits), uniform_runs(kPageTokens, 8)};
    const int64_t bytes = quantized_offsets(layout, 64).total;
    AlignedBuffer block(static_cast<size_t>(bytes));
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      Page page(shape);
      page.fill(1);
      constexpr int64_t kChannel = 5, kSlot = 12;
      reinterpret_cast<uint16_t*>(page.k())[(kChannel / 2 * 64 + kSlot) * 2 + kChannel % 2] = to_bf16(bad);
      const std::vector<TokenPlace> places = page.places(nullptr);
      const PageEncode job{{places}, 1, layout, nullptr, block.data(), bytes};
      cuda::encode_pages(64, {&job, 1}, workspace, nullptr);
      finish();
      std::vector<float> k(64 * 64), v(64 * 64);
      dequantize_page(layout, 64, nullptr, block.data(), k.data(), v.data());
      for (size_t i = 0; i < k.size(); ++i) {
        EXPECT_EQ(std::isnan(k[i]), i % 64 == kChannel) << i;
        EXPECT_TRUE(std::isfinite(v[i]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaPages, kOrders, name_of_order);

TEST(CudaPagesChecks, RefuseWhatDoesNotFit) {
  cuda::PageWorkspace workspace;
  const AttentionShape shape = shape_of(1, 64);
  Page page(shape);
  const cuda::KvWrite write{nullptr, nullptr, 64, nullptr, 60, 5, page.k(), page.v(), 0};
  EXPECT_THROW(cuda::write_kv(shape, {&write, 1}, workspace, nullptr), std::invalid_argument);
  const TokenMove move{{nullptr, nullptr, 0}, {nullptr, nullptr, 64}};
  EXPECT_THROW(cuda::move_tokens(64, {&move, 1}, workspace, nullptr), std::invalid_argument);
  const std::vector<TokenPlace> places = page.places(nullptr);
  PageEncode job{{places}, 1, {uniform_runs(128, 4), uniform_runs(64, 4)}};
  EXPECT_THROW(cuda::encode_pages(64, {&job, 1}, workspace, nullptr), std::invalid_argument);
  job.layout = {uniform_runs(64, 4), uniform_runs(64, 4)};
  job.rows = page.k();
  job.row_bits = 3;
  EXPECT_THROW(cuda::encode_pages(64, {&job, 1}, workspace, nullptr), std::invalid_argument);
  const PageRead read{page.segment(), 0, 1, 60, 5};
  EXPECT_THROW(cuda::read_pages(64, {&read, 1}, workspace, nullptr), std::invalid_argument);
  const PageCopy copy{nullptr, page.k(), 24};
  EXPECT_THROW(cuda::copy_pages({&copy, 1}, workspace, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
