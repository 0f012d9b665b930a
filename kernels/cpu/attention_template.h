// Attention over dense pages, written once over Vec16. Include after one vec16_*.h; everything has internal linkage.
//
// A block is a matrix of query rows (queries x the heads that share one KV head). Per page: S = Q K^T, an online softmax
// update, O += P V, both products on a register tile of up to kRows x 4 vectors. Rows never mix, and every sum runs in
// the order of the tokens, so that a row's bits do not depend on its block.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/vec16_math.h"

namespace smartkv::kernels {
namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kNoMaximum = -1e30f;  // of no token; finite, so that differences are

// C [MR][16 NP] (+)= A [MR][..] B. A step is one row of B: for bf16 a pair of A's columns.
// `next`: the B that will be read next, or nullptr; its lines are asked for while this one is worked on.
template <typename T, int MR, int NP>
void tile(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c, int64_t ldc, bool accumulate,
          const T* next) {
  constexpr int kStep = std::is_same_v<T, float> ? 1 : 2;
  Vec16 acc[MR][NP];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NP; ++j) acc[i][j] = accumulate ? Vec16::load(c + i * ldc + 16 * j) : Vec16::zero();
  }
  for (int64_t s = 0; s < steps; ++s) {
    if (next != nullptr) {
      for (int j = 0; j < NP; ++j) Vec16::prefetch(next + s * ldb + 16 * kStep * j);
    }
    for (int i = 0; i < MR; ++i) {
      const T* x = a + i * lda + kStep * s;
      for (int j = 0; j < NP; ++j) {
        if constexpr (kStep == 1) {
          acc[i][j] = Vec16::fma(Vec16::load(b + s * ldb + 16 * j), Vec16::set1(*x), acc[i][j]);
        } else {
          uint32_t pair;
          std::memcpy(&pair, x, sizeof pair);
          acc[i][j] = Vec16::dot_pairs(acc[i][j], b + s * ldb + 32 * j, pair);
        }
      }
    }
  }
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NP; ++j) acc[i][j].store(c + i * ldc + 16 * j);
  }
}

template <typename T, int NP>
void tile_rows(int64_t rows, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c, int64_t ldc,
               bool accumulate, const T* next) {
  int64_t r = 0;
  for (; r + Vec16::kRows <= rows; r += Vec16::kRows) {
    tile<T, Vec16::kRows, NP>(a + r * lda, lda, b, ldb, steps, c + r * ldc, ldc, accumulate, r == 0 ? next : nullptr);
  }
  const auto rest = [&]<int MR>(std::integral_constant<int, MR>) {
    tile<T, MR, NP>(a + r * lda, lda, b, ldb, steps, c + r * ldc, ldc, accumulate, r == 0 ? next : nullptr);
  };
  if constexpr (Vec16::kRows > 1) {
    switch (rows - r) {
      case 1: rest(std::integral_constant<int, 1>{}); break;
      case 2: rest(std::integral_constant<int, 2>{}); break;
      case 3: rest(std::integral_constant<int, 3>{}); break;
      case 4: rest(std::integral_constant<int, 4>{}); break;
      case 5: rest(std::integral_constant<int, 5>{}); break;
      default: break;
    }
  }
}

// C [rows][16 groups] (+)= A B for any number of column groups.
template <typename T>
void product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c,
             int64_t ldc, bool accumulate, const T* next) {
  constexpr int64_t kGroup = std::is_same_v<T, float> ? 16 : 32;
  int64_t g = 0;
  for (; g + 4 <= groups; g += 4) {
    tile_rows<T, 4>(rows, a, lda, b + g * kGroup, ldb, steps, c + 16 * g, ldc, accumulate,
                    next == nullptr ? nullptr : next + g * kGroup);
  }
  for (; g + 2 <= groups; g += 2) {
    tile_rows<T, 2>(rows, a, lda, b + g * kGroup, ldb, steps, c + 16 * g, ldc, accumulate,
                    next == nullptr ? nullptr : next + g * kGroup);
  }
  for (; g < groups; ++g) {
    tile_rows<T, 1>(rows, a, lda, b + g * kGroup, ldb, steps, c + 16 * g, ldc, accumulate,
                    next == nullptr ? nullptr : next + g * kGroup);
  }
}

// Exact merge of one more partial result into (m, l, o): see attention.h. o, po: [head_dim]
inline void merge_row(float& m, float& l, float* o, float pm, float pl, const float* po, int64_t head_dim) {
  const float maximum = pm > m ? pm : m;
  float factors[16];
  exp2(Vec16::set1(m - maximum)).store(factors);
  const float keep = factors[0];
  exp2(Vec16::set1(pm - maximum)).store(factors);
  const float add = factors[0];
  m = maximum;
  l = l * keep + pl * add;
  const Vec16 vkeep = Vec16::set1(keep), vadd = Vec16::set1(add);
  for (int64_t d = 0; d < head_dim; d += 16) {
    Vec16::fma(Vec16::load(po + d), vadd, Vec16::load(o + d) * vkeep).store(o + d);
  }
}

inline void write_row(const AttentionShape& shape, void* out, int64_t row, float l, const float* o) {
  const Vec16 scale = Vec16::set1(1.0f / l);
  for (int64_t d = 0; d < shape.head_dim; d += 16) {
    const Vec16 value = Vec16::load(o + d) * scale;
    if (shape.type == KvType::kBf16) {
      value.store_bf16(static_cast<uint16_t*>(out) + row * shape.head_dim + d);
    } else {
      value.store(static_cast<float*>(out) + row * shape.head_dim + d);
    }
  }
}

template <typename T>
struct BlockState {
  alignas(64) T q[kMaxBlockRows * kMaxHeadDim];
  alignas(64) T p[kMaxBlockRows * kPageTokens];
  alignas(64) float s[kMaxBlockRows * kPageTokens];
  alignas(64) float o[kMaxBlockRows * kMaxHeadDim];
  alignas(64) float l[kMaxBlockRows * 16];
  float m[kMaxBlockRows];
  alignas(64) float merged_o[kMaxBlockRows * kMaxHeadDim];
  float merged_m[kMaxBlockRows], merged_l[kMaxBlockRows];
};

// One page: scores, online softmax, values. visible[r]: tokens of this page that row r sees; most: their maximum.
// next_k, next_v: of the page that follows, or nullptr.
template <typename T>
void dense_page(const AttentionShape& shape, BlockState<T>& st, int64_t rows, const T* k, const T* v, const T* next_k,
                const T* next_v, const int32_t* visible, int32_t most) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t dim = shape.head_dim, groups = (most + 15) / 16;
  product<T>(rows, groups, st.q, dim, k, kPageTokens * kStep, dim / kStep, st.s, kPageTokens, false, next_k);
  const Vec16 scale = Vec16::set1(shape.scale * kLog2e);
  const int64_t steps = (most + kStep - 1) / kStep;
  for (int64_t r = 0; r < rows; ++r) {
    float* s = st.s + r * kPageTokens;
    Vec16 top = Vec16::set1(kNoMaximum);
    for (int64_t g = 0; g < groups; ++g) {
      Vec16 x = Vec16::load(s + 16 * g) * scale;
      if (visible[r] < 16 * (g + 1)) x = x.first(visible[r] - static_cast<int>(16 * g), 2 * kNoMaximum);
      x.store(s + 16 * g);
      top = Vec16::max(top, x);
    }
    const float maximum = top.reduce_max();
    if (maximum > st.m[r]) {
      const Vec16 keep = exp2(Vec16::set1(st.m[r] - maximum));
      st.m[r] = maximum;
      (Vec16::load(st.l + 16 * r) * keep).store(st.l + 16 * r);
      for (int64_t d = 0; d < dim; d += 16) (Vec16::load(st.o + r * dim + d) * keep).store(st.o + r * dim + d);
    }
    const Vec16 m = Vec16::set1(st.m[r]);
    Vec16 sum = Vec16::load(st.l + 16 * r);
    for (int64_t g = 0; g < groups; ++g) {
      const Vec16 p = exp2(Vec16::load(s + 16 * g) - m);
      sum = sum + p;
      if constexpr (kStep == 1) {
        p.store(st.p + r * kPageTokens + 16 * g);
      } else {
        p.store_bf16(st.p + r * kPageTokens + 16 * g);
      }
    }
    sum.store(st.l + 16 * r);
  }
  product<T>(rows, dim / 16, st.p, kPageTokens, v, dim * kStep, steps, st.o, dim, true, next_v);
}

template <typename T>
void block_of(const AttentionShape& shape, const AttentionTask& task, const AttentionScratch::Item& item,
              float* partial) {
  BlockState<T> st;
  const int64_t dim = shape.head_dim, rows = int64_t{item.n_queries} * item.n_heads;
  const int64_t first_head = item.kv_head * (shape.n_heads / shape.n_kv_heads) + item.head;
  for (int64_t r = 0; r < rows; ++r) {
    const float* q = task.q + (item.query + r / item.n_heads) * task.q_stride + (first_head + r % item.n_heads) * dim;
    for (int64_t d = 0; d < dim; d += 16) {
      if constexpr (std::is_same_v<T, float>) {
        Vec16::load(q + d).store(st.q + r * dim + d);
      } else {
        Vec16::load(q + d).store_bf16(st.q + r * dim + d);
      }
    }
    st.merged_m[r] = kNoMaximum;
    st.merged_l[r] = 0.0f;
    std::memset(st.merged_o + r * dim, 0, static_cast<size_t>(dim) * sizeof(float));
  }

  const int64_t n_segments = static_cast<int64_t>(task.segments.size());
  int64_t start = 0, total = 0;  // tokens before the segment; of all segments
  for (int64_t i = 0; i < n_segments; ++i) {
    if (i < item.stretch * kStretchSegments) start += task.segments[i].tokens;
    total += task.segments[i].tokens;
  }
  const int64_t last_segment = item.stretch_end * kStretchSegments < n_segments ? item.stretch_end * kStretchSegments : n_segments;
  const int64_t seen = total - task.n + item.query + 1;  // by the block's first query
  for (int64_t stretch = item.stretch; stretch < item.stretch_end; ++stretch) {
    for (int64_t r = 0; r < rows; ++r) st.m[r] = kNoMaximum;
    std::memset(st.l, 0, static_cast<size_t>(rows) * 16 * sizeof(float));
    std::memset(st.o, 0, static_cast<size_t>(rows * dim) * sizeof(float));
    const int64_t end = (stretch + 1) * kStretchSegments < n_segments ? (stretch + 1) * kStretchSegments : n_segments;
    for (int64_t i = stretch * kStretchSegments; i < end; ++i) {
      const KvSegment& segment = task.segments[i];
      int32_t visible[kMaxBlockRows], most = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t n = seen + r / item.n_heads - start;
        visible[r] = static_cast<int32_t>(n < 0 ? 0 : n < segment.tokens ? n : segment.tokens);
        if (visible[r] > most) most = visible[r];
      }
      start += segment.tokens;
      if (most == 0) continue;  // in the future of every row
      const auto head = [&](const KvSegment& s, const void* base) {
        return reinterpret_cast<const T*>(static_cast<const char*>(base) + item.kv_head * s.head_stride);
      };
      const KvSegment* next = i + 1 < last_segment ? &task.segments[i + 1] : nullptr;
      dense_page<T>(shape, st, rows, head(segment, segment.k), head(segment, segment.v),
                    next == nullptr ? nullptr : head(*next, next->k), next == nullptr ? nullptr : head(*next, next->v),
                    visible, most);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float l = Vec16::load(st.l + 16 * r).reduce_add();
      if (partial != nullptr) {
        float* to = partial + ((stretch - item.stretch) * rows + r) * partial_floats(dim);
        to[0] = st.m[r];
        to[1] = l;
        std::memcpy(to + 2, st.o + r * dim, static_cast<size_t>(dim) * sizeof(float));
      } else {
        merge_row(st.merged_m[r], st.merged_l[r], st.merged_o + r * dim, st.m[r], l, st.o + r * dim, dim);
      }
    }
  }
  if (partial != nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = (item.query + r / item.n_heads) * shape.n_heads + first_head + r % item.n_heads;
    write_row(shape, task.out, row, st.merged_l[r], st.merged_o + r * dim);
  }
}

void block(const AttentionShape& shape, const AttentionTask& task, const AttentionScratch::Item& item, float* partial) {
  if (shape.type == KvType::kBf16) {
    block_of<uint16_t>(shape, task, item, partial);
  } else {
    block_of<float>(shape, task, item, partial);
  }
}

void merge(const AttentionShape& shape, const AttentionTask& task, const AttentionScratch::Item& item,
           const float* partial) {
  const int64_t dim = shape.head_dim, rows = int64_t{item.n_queries} * item.n_heads;
  const int64_t first_head = item.kv_head * (shape.n_heads / shape.n_kv_heads) + item.head;
  alignas(64) float o[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    float m = kNoMaximum, l = 0.0f;
    std::memset(o, 0, sizeof o);
    for (int64_t s = 0; s < item.stretch_end - item.stretch; ++s) {
      const float* from = partial + (s * rows + r) * partial_floats(dim);
      merge_row(m, l, o, from[0], from[1], from + 2, dim);
    }
    const int64_t row = (item.query + r / item.n_heads) * shape.n_heads + first_head + r % item.n_heads;
    write_row(shape, task.out, row, l, o);
  }
}

}  // namespace
}  // namespace smartkv::kernels
