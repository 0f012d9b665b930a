// A sequence with indexed pages, for tests of attention over them.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/indexed_rows.h"
#include "tests/kernels/attention_sequence.h"

namespace smartkv::kernels {

constexpr int64_t kIndexedPages = 9;  // indexed pages of a sequence

// A random sequence that begins with indexed pages. A query reads the whole first page, and `read` tokens of each other
// one. Rows have `bits` bits; 0 means that they are dense. `sequence` holds K and V as they are read back.
struct IndexedSequence {
  Shape shape;
  int32_t read;
  uint64_t seed;
  Sequence sequence, index;  // `index` has the keys of the index
  std::vector<AlignedBuffer> rows, indices;
  std::vector<float> means;  // [pages, n_kv_heads, 2, head_dim]

  IndexedSequence(Shape of, KvType type, int32_t reads, int bits = 0, int64_t n = 700, uint64_t random = 5)
      : shape(of), read(reads), seed(random), sequence(of, type, n, random), index(of, type, n, random) {
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

  // Decodes a KV head's rows as kernels/indexed_rows.h defines them: mean + step * (code - (2^bits - 1) / 2).
  void read_back(int64_t page, int64_t head, int bits, const std::byte* from) {
    const KvType type = sequence.shape.type;
    const int64_t dim = shape.head_dim;
    const auto dense = [&](int64_t bytes, int64_t i) {
      const auto* at = from + bytes;
      return type == KvType::kBf16 ? from_bf16(reinterpret_cast<const uint16_t*>(at)[i])
                                   : reinterpret_cast<const float*>(at)[i];
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

  // Returns what each entry promises to a query (see AttentionKernels::promise).
  std::vector<double> promises(int64_t query, int64_t kv_head) const {
    const int64_t group = shape.n_heads / shape.n_kv_heads;
    std::vector<double> sum(static_cast<size_t>(query + 1));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const std::vector<double> p = index.probabilities(query, head);
      for (size_t t = 0; t < sum.size(); ++t) sum[t] += p[t];
    }
    return sum;
  }

  // Writes a KV head's K and V to `to`. Tokens that were not read (mass 0) become their page's mean.
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

// Expects the last queries to read as many tokens as requested, and the ones that promise most. `mass` is the result of
// attention_mass(). Returns the relative_error() of the outputs `out` against attention over the tokens that were read,
// in which every other token is replaced by its page's mean.
inline double reading_error(const IndexedSequence& indexed, const std::vector<float>& mass,
                            const std::vector<uint8_t>& out) {
  const Sequence& sequence = indexed.sequence;
  const Shape shape = indexed.shape;
  const KvType type = sequence.shape.type;
  const auto n = static_cast<int64_t>(out.size()) / (shape.n_heads * shape.head_dim * element_bytes(type));
  const float* at = mass.data();
  Sequence reference(shape, type, sequence.tokens, indexed.seed);
  std::vector<double> expected;
  for (int64_t query = sequence.tokens - n; query < sequence.tokens; ++query) {
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
      EXPECT_EQ(chosen, indexed.read * (kIndexedPages - 1));
      // A step is at most 4.4 %, and the product over the index is rounded.
      EXPECT_GT(least, left * 0.93);
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
  return relative_error(expected, [&](size_t i) { return element(out, type, i); });
}

}  // namespace smartkv::kernels
