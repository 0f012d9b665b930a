#include "kernels/sparse_attention.h"

#include <algorithm>
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
#include "tests/kernels/attention_sequence.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kIndexedPages = 9;

// A random sequence, of whose pages 1 to 8 a query reads `read` tokens each, and the whole first one. Its rows have so many
// bits; 0: they are dense. What K and V are when they are read back is what `sequence` holds.
struct IndexedSequence {
  Shape shape;
  uint64_t seed;
  Sequence sequence, index;  // index: its keys are those of the index
  std::vector<AlignedBuffer> rows, indices;
  std::vector<float> means;  // [pages, n_kv_heads, 2, head_dim]

  IndexedSequence(Shape of, KvType type, int32_t read, int bits = 0, int64_t n = 700, uint64_t random = 5)
      : shape(of), seed(random), sequence(of, type, n, random), index(of, type, n, random) {
    const int64_t dim = shape.head_dim, heads = shape.n_kv_heads;
    QuantizedLayout layout{uniform_runs(dim, 2), {}};
    layout.v.dropped = kPageTokens / 4;
    for (int64_t page = 0; page < kIndexedPages; ++page) {
      const int64_t block = quantized_offsets(layout, dim).total, row_block = indexed_rows_bytes(type, dim, bits);
      AlignedBuffer& codes = indices.emplace_back(static_cast<size_t>(heads * block));
      AlignedBuffer& to = rows.emplace_back(static_cast<size_t>(heads * row_block));
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<float> k, v;
        for (int64_t t = 0; t < kPageTokens; ++t) {
          const int64_t row = ((page * kPageTokens + t) * heads + h) * dim;
          k.insert(k.end(), &sequence.k[row], &sequence.k[row] + dim);
          v.insert(v.end(), &sequence.v[row], &sequence.v[row] + dim);
        }
        encode_rows(type, dim, bits, k.data(), v.data(), to.data() + h * row_block);
        read_back(page, h, bits, to.data() + h * row_block);
        quantize_page(layout, dim, nullptr, k.data(), v.data(), codes.data() + h * block);
        dequantize_page(layout, dim, nullptr, codes.data() + h * block, k.data(), v.data());
        for (int64_t t = 0; t < kPageTokens; ++t) {
          std::copy_n(k.data() + t * dim, dim, &index.k[((page * kPageTokens + t) * heads + h) * dim]);
        }
      }
      KvSegment& segment = sequence.segments[static_cast<size_t>(page)];
      segment = {};
      segment.format = KvSegment::Format::kIndexed;
      segment.tokens = kPageTokens;
      segment.k = codes.data();
      segment.head_stride = block;
      segment.v = to.data();
      segment.quantized = layout;
      segment.read = page == 0 ? static_cast<int32_t>(kPageTokens) : read;
      segment.row_bits = bits;
    }
  }

  // As kernels/indexed_rows.h says: mean + step * (code - (2^bits - 1) / 2).
  void read_back(int64_t page, int64_t head, int bits, const std::byte* from) {
    const KvType type = sequence.shape.type;
    const int64_t dim = shape.head_dim;
    const auto dense = [&](int64_t bytes, int64_t i) {
      const auto* at = from + bytes;
      return type == KvType::kBf16 ? from_bf16(reinterpret_cast<const uint16_t*>(at)[i]) : reinterpret_cast<const float*>(at)[i];
    };
    const float* mean = nullptr;
    for (int64_t i = 0; i < 2 * dim; ++i) means.push_back(dense(means_offset(type, dim, bits), i));
    mean = &means[means.size() - static_cast<size_t>(2 * dim)];
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const int64_t row = t * row_bytes(type, dim, bits);
      const auto* codes = reinterpret_cast<const uint8_t*>(from + row);
      for (int64_t i = 0; i < 2 * dim; ++i) {
        float value = 0;
        if (bits == 0) {
          value = dense(row, i);
        } else {
          float steps[2];
          std::memcpy(steps, codes + 2 * dim * bits / 8, sizeof steps);
          const int code = bits == 8 ? codes[i] : codes[i / 2] >> 4 * (i % 2) & 15;
          value = mean[i] + steps[i / dim] * (static_cast<float>(code) - static_cast<float>((1 << bits) - 1) / 2);
        }
        const int64_t at = ((page * kPageTokens + t) * shape.n_kv_heads + head) * dim + i % dim;
        (i < dim ? sequence.k : sequence.v)[at] = value;
      }
    }
  }

  // What each entry promises to a query: see AttentionKernels::promise.
  std::vector<double> promises(int64_t query, int64_t kv_head) const {
    const int64_t group = shape.n_heads / shape.n_kv_heads;
    std::vector<double> sum(static_cast<size_t>(query + 1));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const std::vector<double> p = index.probabilities(query, head);
      for (size_t t = 0; t < sum.size(); ++t) sum[t] += p[t];
    }
    return sum;
  }

  // K and V of a KV head's tokens, those that were not read (mass 0) being their page's mean.
  void replace_unread(int64_t kv_head, const float* mass, Sequence* to) const {
    for (int64_t t = 0; t < kIndexedPages * kPageTokens; ++t) {
      const float* mean = &means[(t / kPageTokens * shape.n_kv_heads + kv_head) * 2 * shape.head_dim];
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        const int64_t at = (t * shape.n_kv_heads + kv_head) * shape.head_dim + d;
        to->k[at] = mass[t] > 0 ? sequence.k[at] : mean[d];
        to->v[at] = mass[t] > 0 ? sequence.v[at] : mean[shape.head_dim + d];
      }
    }
  }
};

std::vector<float> mass_of(const Sequence& sequence, int64_t n, int threads = 2) {
  ThreadPool pool(threads);
  AttentionScratch scratch;
  return run_mass(sequence, n, [&](const AttentionMassTask& task) { attention_mass(pool, sequence.shape, {&task, 1}, scratch); });
}

class SparseAttention : public testing::TestWithParam<std::tuple<CpuLevel, KvType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) <= detected_cpu_level()) set_cpu_level(std::get<0>(GetParam()));
  }
  void TearDown() override { set_cpu_level(detected_cpu_level()); }
  KvType type() const { return std::get<1>(GetParam()); }
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

// What is read is as much as was asked for, and what promises most; every other token counts as its page's mean.
TEST_P(SparseAttention, ReadsWhatPromisesMost) {
  ThreadPool pool(2);
  for (const Shape shape : {Shape{9, 3, 64}, Shape{4, 2, 128}, Shape{2, 1, 80}}) {
    for (const auto& [read, bits] : {std::pair{1, 0}, {16, 0}, {63, 0}, {16, 8}, {16, 4}}) {
      const IndexedSequence indexed(shape, type(), read, bits);
      const Sequence& sequence = indexed.sequence;
      constexpr int64_t kQueries = 3;
      const std::vector<float> mass = mass_of(sequence, kQueries);
      const std::vector<uint8_t> out = run_attention(pool, sequence, kQueries);
      const float* at = mass.data();
      Sequence reference(shape, type(), sequence.tokens, indexed.seed);
      std::vector<double> expected;
      for (int64_t query = sequence.tokens - kQueries; query < sequence.tokens; ++query) {
        for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head, at += query + 1) {
          int64_t chosen = 0;
          double least = 1e30, left = 0;
          const std::vector<double> promises = indexed.promises(query, kv_head);
          for (int64_t t = kPageTokens; t < kIndexedPages * kPageTokens; ++t) {
            const double promise = promises[static_cast<size_t>(t)];
            if (at[t] > 0) {
              ++chosen;
              least = std::min(least, promise);
            } else {
              left = std::max(left, promise);
            }
          }
          EXPECT_EQ(chosen, read * (kIndexedPages - 1));
          EXPECT_GT(least, left * 0.93);  // a step is 4.4 % at most; and the rounding of the product over codes
          const int64_t group = shape.n_heads / shape.n_kv_heads;
          indexed.replace_unread(kv_head, at, &reference);
          for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            const std::vector<double> p = reference.probabilities(query, head);
            for (int64_t d = 0; d < shape.head_dim; ++d) {
              double o = 0;
              for (int64_t t = 0; t <= query; ++t) {
                o += p[t] * static_cast<double>(reference.v[(t * shape.n_kv_heads + kv_head) * shape.head_dim + d]);
              }
              expected.push_back(o);
            }
          }
        }
      }
      EXPECT_LT(relative_error(expected, [&](size_t i) { return element(out, type(), i); }), type() == KvType::kBf16 ? 6e-3 : 2e-6)
          << shape.head_dim << " " << read << " " << bits;
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
  const AttentionTask tasks[] = {indexed.sequence.task(1, a.data()), dense.task(3, b.data()), other.sequence.task(2, c.data())};
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
      gathered[static_cast<size_t>(t)] = {at + means_offset(type(), dim, bits), at + t * row_bytes(type(), dim, bits), bits};
    }
    AlignedBuffer page(static_cast<size_t>(kPageTokens * row_bytes(type(), dim, 0)));
    cpu_kernels().attention->gather({1, 1, dim, 1, type()}, gathered.data(), kPageTokens, page.data());
    const auto value = [&](size_t i) {
      return type() == KvType::kF32 ? page.as<float>()[i] : from_bf16(page.as<uint16_t>()[i]);
    };
    for (int64_t t = 0; t < kPageTokens; ++t) {
      float steps[2];
      std::memcpy(steps, gathered[static_cast<size_t>(t)].codes + 2 * dim * bits / 8, sizeof steps);
      for (int64_t d = 0; d < dim; ++d) {
        const bool pairs = type() == KvType::kBf16;
        const auto k_at = static_cast<size_t>(pairs ? (d / 2 * kPageTokens + t) * 2 + d % 2 : d * kPageTokens + t);
        const auto v_at = static_cast<size_t>(kPageTokens * dim + (pairs ? (t / 2 * dim + d) * 2 + t % 2 : t * dim + d));
        const float exact_k = k[static_cast<size_t>(t * dim + d)], exact_v = v[static_cast<size_t>(t * dim + d)];
        const float rounding = pairs ? 0x1p-8f : 1e-6f;
        EXPECT_NEAR(value(k_at), exact_k, steps[0] * 0.5001f + std::abs(exact_k) * rounding) << t << " " << d << " " << bits;
        EXPECT_NEAR(value(v_at), exact_v, steps[1] * 0.5001f + std::abs(exact_v) * rounding) << t << " " << d << " " << bits;
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
      "attention: expected an indexed page of all KV heads without bias or sliding window, of which 1 to 64 tokens are "
      "read, found ";
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].read = 0; }), expected + "0");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].read = 65; }), expected + "65");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].kv_head = 1; }), expected + "16");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].row_bits = 5; }),
            "attention: expected an indexed page with rows of 4 or 8 bits, or dense ones (0), found 5");
  EXPECT_EQ(error([](Sequence& s) { s.segments[2].bias = s.k.data(); }), expected + "16");
  EXPECT_EQ(error([](Sequence& s) { s.shape.window = 300; }), expected + "64");
}

INSTANTIATE_TEST_SUITE_P(Levels, SparseAttention,
                         testing::Combine(testing::Values(CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512,
                                                          CpuLevel::kAvx512Vnni, CpuLevel::kAmx),
                                          testing::Values(KvType::kBf16, KvType::kF32)),
                         [](const auto& row) {
                           return std::string(name(std::get<0>(row.param))) +
                                  (std::get<1>(row.param) == KvType::kBf16 ? "_bf16" : "_f32");
                         });

}  // namespace
}  // namespace smartkv::kernels
