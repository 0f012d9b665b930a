// Attention over pages of any format, written once over Vec16: the blocks of attention(), the merge of partial results,
// attention_mass(), and the promises and gathering of sparse attention. Include after one vec16_codes_*.h. Everything
// has internal linkage.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention_pages.h"

namespace smartkv::kernels {
namespace {

// Merges one more partial result (pm, pl, po) into (m, l, o), exactly as in attention.h. o, po: f32 [head_dim].
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

// Adds the sink of a query head, if it has one, to (m, l, o).
inline void add_sink(const AttentionShape& shape, int64_t head, float& m, float& l, float* o, int64_t head_dim) {
  alignas(64) static constexpr float kZeros[kMaxHeadDim] = {};
  if (shape.sinks != nullptr) merge_row(m, l, o, shape.sinks[head] * kLog2e, 1.0f, kZeros, head_dim);
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

// Returns the query head of row r.
inline int64_t head_of(const AttentionShape& shape, const AttentionScratch::Item& item, int64_t r) {
  return first_head(shape, item) + r % item.n_heads;
}

inline int64_t out_row(const AttentionShape& shape, const AttentionScratch::Item& item, int64_t r) {
  return (item.query + r / item.n_heads) * shape.n_heads + head_of(shape, item, r);
}

template <typename T>
void block_of(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
              AttentionScratch& scratch) {
  const int64_t dim = shape.head_dim, rows = rows_of(item);
  const AttentionScratch::Member* members = &scratch.members[static_cast<size_t>(item.member)];
  const auto task_of = [&](int64_t member) -> const AttentionTask& {
    return tasks[static_cast<size_t>(members[member].task)];
  };
  const AttentionTask& task = task_of(0);  // All members have the same pages here.
  const bool covers_all = members[0].partial < 0;
  Block<T> block(shape, rows);
  load_queries(task_of, item, block);
  const BlockScope scope(rows);
  alignas(64) float merged_o[kMaxBlockRows * kMaxHeadDim];
  float merged_m[kMaxBlockRows], merged_l[kMaxBlockRows];
  for (int64_t r = 0; r < rows; ++r) {
    merged_m[r] = kNoMaximum;
    merged_l[r] = 0.0f;
  }
  std::memset(merged_o, 0, static_cast<size_t>(rows * dim) * sizeof(float));

  const auto segments_until = [&](int64_t split) {
    return std::min(static_cast<int64_t>(task.segments.size()), split * kSplitSegments);
  };
  const int64_t last_segment = segments_until(item.split_end);
  const int64_t seen = tokens_of(task.segments) - task.n + item.query + 1;  // Tokens that the block's first query sees.
  int64_t start = tokens_of(task.segments.first(static_cast<size_t>(segments_until(item.split))));
  const auto own_from = [&](int64_t i) {  // Skips segments of other KV heads.
    while (i < last_segment && !task.segments[static_cast<size_t>(i)].is_of(item.kv_head)) ++i;
    return i;
  };
  int64_t own = own_from(item.split * kSplitSegments);
  Page page, next;
  if (own < last_segment) next = page_of(shape, task.segments[static_cast<size_t>(own)], item.kv_head);
  for (int64_t split = item.split; split < item.split_end; ++split) {
    for (int64_t r = 0; r < rows; ++r) block.m[r] = kNoMaximum;
    std::memset(block.l, 0, static_cast<size_t>(rows) * 16 * sizeof(float));
    std::memset(block.o, 0, static_cast<size_t>(rows * block.wide) * sizeof(float));
    for (int64_t i = split * kSplitSegments; i < segments_until(split + 1); ++i) {
      const Visible visible = visible_tokens(item, seen - start, shape.window, task.segments[i].tokens);
      start += task.segments[i].tokens;
      if (i != own) continue;  // It belongs to another KV head.
      page = next;
      own = own_from(i + 1);
      const bool is_last = own == last_segment;
      if (!is_last) next = page_of(shape, task.segments[static_cast<size_t>(own)], item.kv_head);
      if (visible.none) continue;  // The page is in the future of every row, or before its window.
      const int64_t groups = (visible.latest + 15) / 16;
      page_scores(block, page, is_last ? nullptr : &next, visible, groups);
      softmax(block, groups, dim);
      kernels_of<T>(page).values(block, page, is_last ? nullptr : &next, groups);
    }
    if (block.table != nullptr) add_coded_output(block, block.table->heads[static_cast<size_t>(item.kv_head)].v);
    for (int64_t r = 0; r < rows; ++r) {
      const float l = Vec16::load(block.l + 16 * r).reduce_add();
      const float* o = block.o + r * block.wide;
      if (covers_all) {
        merge_row(merged_m[r], merged_l[r], merged_o + r * dim, block.m[r], l, o, dim);
        continue;
      }
      const int64_t of_member = member_rows(item), place = split * of_member + r % of_member;
      float* to = scratch.partial.data() + members[r / of_member].partial + place * partial_floats(dim);
      to[0] = block.m[r];
      to[1] = l;
      std::memcpy(to + 2, o, static_cast<size_t>(dim) * sizeof(float));
    }
  }
  if (!covers_all) return;
  for (int64_t r = 0; r < rows; ++r) {
    add_sink(shape, head_of(shape, item, r), merged_m[r], merged_l[r], merged_o + r * dim, dim);
    write_row(shape, task.out, out_row(shape, item, r), merged_l[r], merged_o + r * dim);
  }
}

// Computes attention_mass() in two passes over K: first the maximum and the sum of every row, then its probabilities.
template <typename T>
void mass_of(const AttentionShape& shape, const AttentionMassTask& task, const AttentionScratch::Item& item) {
  const int64_t rows = rows_of(item);
  Block<T> block(shape, rows);
  load_queries([&](int64_t) -> const AttentionMassTask& { return task; }, item, block);
  const BlockScope scope(rows);
  const int64_t seen = tokens_of(task.segments) - task.n + item.query + 1;  // Tokens that the block's first query sees.
  for (int64_t r = 0; r < rows; ++r) block.m[r] = kNoMaximum;
  std::memset(block.l, 0, static_cast<size_t>(rows) * 16 * sizeof(float));

  // Calls function() for each page after computing its scores, and pass_over(start, visible) for segments of other KV
  // heads and segments before all windows.
  const auto for_each_page = [&](const auto& function, const auto& pass_over) {
    int64_t start = 0;
    for (const KvSegment& segment : task.segments) {
      const Visible visible = visible_tokens(item, seen - start, shape.window, segment.tokens);
      if (visible.latest == 0) break;
      if (segment.is_of(item.kv_head) && !visible.none) {
        const int64_t groups = (visible.latest + 15) / 16;
        page_scores(block, page_of(shape, segment, item.kv_head), nullptr, visible, groups);
        function(start, groups, visible);
      } else {
        pass_over(start, visible);
      }
      start += segment.tokens;
    }
  };
  for_each_page([&](int64_t, int64_t groups, const Visible&) { softmax(block, groups, 0); },
                [](int64_t, const Visible&) {});
  float share[kMaxBlockRows];  // One over the sum of a row.
  for (int64_t r = 0; r < rows; ++r) {
    float l = Vec16::load(block.l + 16 * r).reduce_add();
    add_sink(shape, head_of(shape, item, r), block.m[r], l, nullptr, 0);
    share[r] = 1.0f / l;
  }

  const Vec16 scale = Vec16::set1(shape.scale * kLog2e);
  float* const results = task.mass + mass_offset(shape, task, item.query);
  const auto result_of = [&](int64_t i, int64_t start) {
    return results + shape.n_kv_heads * (i * seen + i * (i - 1) / 2) + item.kv_head * (seen + i) + start;
  };
  const auto write_probabilities = [&](int64_t start, int64_t groups, const Visible& visible) {
    for (int64_t i = 0; i < item.n_queries; ++i) {
      const int64_t tokens = visible.end[i * item.n_heads];
      float* out = result_of(i, start);
      alignas(64) float most[kPageTokens] = {};
      if (item.head > 0) std::memcpy(most, out, static_cast<size_t>(tokens) * sizeof(float));
      for (int64_t r = i * item.n_heads; r < (i + 1) * item.n_heads; ++r) {
        const Vec16 minus_m = Vec16::set1(-block.m[r]), part = Vec16::set1(share[r]);
        for (int64_t g = 0; g < groups; ++g) {
          const Vec16 s = Vec16::load(block.s + r * kPageTokens + 16 * g);
          Vec16::max(Vec16::load(most + 16 * g), exp2(Vec16::fma(s, scale, minus_m)) * part).store(most + 16 * g);
        }
      }
      std::memcpy(out, most, static_cast<size_t>(tokens) * sizeof(float));
    }
  };
  for_each_page(write_probabilities, [&](int64_t start, const Visible& visible) {
    for (int64_t i = 0; i < item.n_queries; ++i) std::fill_n(result_of(i, start), visible.end[i * item.n_heads], 0.0f);
  });
}

template <typename T>
void promise_of(const AttentionShape& shape, const float* q, int64_t kv_head, std::span<const KvSegment> segments,
                float* scores, float* promise) {
  const int64_t heads = shape.n_heads / shape.n_kv_heads, entries = static_cast<int64_t>(segments.size()) * kPageTokens;
  const AttentionTask task{q, 0, 1, {}, nullptr};
  const Vec16 scale = Vec16::set1(shape.scale * kLog2e);
  for (int64_t t = 0; t < entries; t += 16) Vec16::zero().store(promise + t);
  for (int64_t head = 0; head < heads; head += kMaxBlockRows) {
    const int64_t rows = heads - head < kMaxBlockRows ? heads - head : kMaxBlockRows;
    AttentionScratch::Item item{};
    item.n_members = item.n_queries = 1;
    item.kv_head = static_cast<int32_t>(kv_head);
    item.head = static_cast<int32_t>(head);
    item.n_heads = static_cast<int32_t>(rows);
    Block<T> block(shape, rows);
    load_queries([&](int64_t) -> const AttentionTask& { return task; }, item, block);
    const BlockScope scope(rows);
    alignas(64) float most[kMaxBlockRows * 16];
    for (int64_t r = 0; r < rows; ++r) Vec16::set1(kNoMaximum).store(most + 16 * r);
    Page next = page_of(shape, segments[0], kv_head);
    for (size_t i = 0; i < segments.size(); ++i) {
      const Page page = next;
      const bool is_last = i + 1 == segments.size();
      if (!is_last) next = page_of(shape, segments[i + 1], kv_head);
      const Visible visible =
          visible_tokens(item, kPageTokens, 0, page.segment->is_of(kv_head) ? page.segment->tokens : 0);
      const int64_t groups = (visible.latest + 15) / 16;
      if (groups > 0) page_scores(block, page, is_last ? nullptr : &next, visible, groups);
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = block.s + r * kPageTokens;
        float* to = scores + r * entries + static_cast<int64_t>(i) * kPageTokens;
        Vec16 top = Vec16::load(most + 16 * r);
        for (int64_t g = 0; g < kPageTokens / 16; ++g) {
          const Vec16 s = g < groups ? Vec16::load(from + 16 * g) : Vec16::set1(kUnseen);
          top = Vec16::max(top, s);
          s.store(to + 16 * g);
        }
        top.store(most + 16 * r);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* const of = scores + r * entries;
      float m = Vec16::load(most + 16 * r).reduce_max() * shape.scale * kLog2e, l = 0.0f;
      add_sink(shape, head_of(shape, item, r), m, l, nullptr, 0);
      const Vec16 minus_m = Vec16::set1(-m);
      Vec16 sum = Vec16::zero();
      for (int64_t t = 0; t < entries; t += 16) {
        const Vec16 p = exp2(Vec16::fma(Vec16::load(of + t), scale, minus_m));
        sum = sum + p;
        p.store(of + t);
      }
      const Vec16 share = Vec16::set1(1.0f / (l + sum.reduce_add()));
      for (int64_t t = 0; t < entries; t += 16)
        Vec16::fma(Vec16::load(of + t), share, Vec16::load(promise + t)).store(promise + t);
    }
  }
}

void promise(const AttentionShape& shape, const float* q, int64_t kv_head, std::span<const KvSegment> segments,
             float* scores, float* promise) {
  shape.type == KvType::kBf16 ? promise_of<uint16_t>(shape, q, kv_head, segments, scores, promise)
                              : promise_of<float>(shape, q, kv_head, segments, scores, promise);
}

int64_t greater(const float* promise, std::span<const int32_t> pages, float least, uint64_t* bits) {
  const Vec16 bound = Vec16::set1(least);
  int64_t n = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const float* const of = promise + kPageTokens * pages[i];
    uint64_t found = 0;
    for (int t = 0; t < kPageTokens; t += 16) found |= uint64_t{Vec16::greater(Vec16::load(of + t), bound)} << t;
    bits[i] = found;
    n += __builtin_popcountll(found);
  }
  return n;
}

// Transposes 16 rows of 32-bit numbers to [columns][16]. The rows of `to` are `stride` numbers apart.
template <typename Vector>
void transpose_rows(const char* const* rows, int64_t columns, uint32_t* to, int64_t stride) {
  int64_t c = 0;
  if constexpr (requires { Vector::transpose(rows, 0, to, stride); }) {
    for (; c + 16 <= columns; c += 16) Vector::transpose(rows, 4 * c, to + c * stride, stride);
  }
  for (; c < columns; ++c) {
    for (int j = 0; j < 16; ++j) std::memcpy(to + c * stride + j, rows[j] + 4 * c, sizeof *to);
  }
}

// Expands K and V of a quantized row to [2][head_dim] of shape.type.
template <typename T, int Bits>
void expand_row(const IndexedRow& row, int64_t dim, T* to) {
  const auto* codes = reinterpret_cast<const uint8_t*>(row.codes);
  const auto* means = reinterpret_cast<const T*>(row.dense);
  float steps[2];
  std::memcpy(steps, codes + 2 * dim * Bits / 8, sizeof steps);
  for (const float step : steps) {
    const Vec16 scale = Vec16::set1(step), least = Vec16::set1(step * -0.5f * ((1 << Bits) - 1));
    for (int64_t d = 0; d < dim; d += 16, codes += 2 * Bits, means += 16, to += 16) {
      const Vec16 code = Bits == 8 ? Vec16::load_u8(codes) : Vec16::load_u4(codes);
      store(Vec16::fma(code, scale, load(means) + least), to);
    }
  }
}

void expand_row(const AttentionShape& shape, const IndexedRow& row, char* to) {
  const auto expand = [&]<typename T>(T* values) {
    row.bits == 8 ? expand_row<T, 8>(row, shape.head_dim, values) : expand_row<T, 4>(row, shape.head_dim, values);
  };
  shape.type == KvType::kF32 ? expand(reinterpret_cast<float*>(to)) : expand(reinterpret_cast<uint16_t*>(to));
}

void gather(const AttentionShape& shape, std::span<const IndexedRow> rows, void* page) {
  const int64_t n = std::min(kPageTokens, std::ssize(rows));
  const int64_t dim = shape.head_dim, k_bytes = dim * element_bytes(shape.type);
  char* const v = static_cast<char*>(page) + kPageTokens * k_bytes;
  alignas(64) char expanded[16 * 2 * kMaxHeadDim * sizeof(float)];
  for (int64_t t = 0; t < n; t += 16) {
    const char* of[16];
    for (int64_t j = t + 16; j < t + 32 && j < std::ssize(rows); ++j) {
      const IndexedRow& row = rows[static_cast<size_t>(j)];
      const char* const at = row.codes != nullptr ? row.codes : row.dense;
      const char* const end = at + row_bytes(shape.type, dim, row.codes != nullptr ? row.bits : 0);
      for (const char* line = at; line < end; line += 64) Vec16::prefetch(line);
    }
    for (int64_t j = 0; j < 16; ++j) {
      const IndexedRow& row = rows[static_cast<size_t>(std::min(t + j, n - 1))];
      of[j] = row.dense;
      if (row.codes == nullptr) continue;
      char* const to = expanded + j * 2 * k_bytes;
      expand_row(shape, row, to);
      of[j] = to;
    }
    transpose_rows<Vec16>(of, k_bytes / 4, static_cast<uint32_t*>(page) + t, kPageTokens);
    for (int64_t j = 0; j < 16; j += 2) {
      char* const to = v + (t + j) * k_bytes;
      if (shape.type == KvType::kF32) {
        std::memcpy(to, of[j] + k_bytes, static_cast<size_t>(k_bytes));
        std::memcpy(to + k_bytes, of[j + 1] + k_bytes, static_cast<size_t>(k_bytes));
        continue;
      }
      const auto* a = reinterpret_cast<const uint16_t*>(of[j] + k_bytes);
      const auto* b = reinterpret_cast<const uint16_t*>(of[j + 1] + k_bytes);
      auto* pairs = reinterpret_cast<uint32_t*>(to);
      for (int64_t d = 0; d < dim; ++d) pairs[d] = a[d] | static_cast<uint32_t>(b[d]) << 16;
    }
  }
}

void mass(const AttentionShape& shape, const AttentionMassTask& task, const AttentionScratch::Item& item) {
  shape.type == KvType::kBf16 ? mass_of<uint16_t>(shape, task, item) : mass_of<float>(shape, task, item);
}

void block(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
           AttentionScratch& scratch) {
  shape.type == KvType::kBf16 ? block_of<uint16_t>(shape, tasks, item, scratch)
                              : block_of<float>(shape, tasks, item, scratch);
}

void merge(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
           const AttentionScratch& scratch) {
  const int64_t dim = shape.head_dim, rows = rows_of(item);
  const AttentionScratch::Member& member = scratch.members[static_cast<size_t>(item.member)];
  const float* partial = scratch.partial.data() + member.partial;
  alignas(64) float o[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    float m = kNoMaximum, l = 0.0f;
    std::memset(o, 0, sizeof o);
    for (int64_t s = 0; s < item.split_end; ++s) {
      const float* from = partial + (s * rows + r) * partial_floats(dim);
      merge_row(m, l, o, from[0], from[1], from + 2, dim);
    }
    add_sink(shape, head_of(shape, item, r), m, l, o, dim);
    write_row(shape, tasks[static_cast<size_t>(member.task)].out, out_row(shape, item, r), l, o);
  }
}

}  // namespace
}  // namespace smartkv::kernels
