#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/calibrated_page.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {
namespace {

// Segments of a split. They give enough blocks for a GPU at 32k tokens of one sequence, and partial results that are
// small beside the pages. They are fixed, so that results do not depend on what else is in the call.
constexpr int64_t kFewRowsSplit = 8, kManyRowsSplit = 64;

int coded_bytes(const CodeRuns& runs, int64_t extent) {
  int64_t bytes = 0;
  for (size_t i = 0; i < kCodeBits.size(); ++i) {
    bytes += runs.quads[i] * quad_stride(static_cast<int>(extent * kCodeBits[i] / 2));
  }
  return static_cast<int>(bytes);
}

int dense_stage_bytes(const AttentionShape& shape, bool values) {
  const auto head_dim = static_cast<int>(shape.head_dim);
  return kBiasBytes + head_dim / 2 * kDenseKRow + (values ? kPage / 2 * dense_v_row(head_dim) : 0);
}

// Returns the bytes of shared memory that a page takes, with or without its values.
int stage_bytes(const AttentionShape& shape, const KvSegment& segment, bool values) {
  if (segment.format == KvSegment::Format::kDense) return dense_stage_bytes(shape, values);
  if (segment.format == KvSegment::Format::kCalibrated) {
    int64_t bytes = 0;
    for (const HeadWidths& head : segment.table->heads) {
      bytes = std::max(bytes, values ? head.at.total : head.at.v_codes);
    }
    return kBiasBytes + static_cast<int>(bytes);
  }
  const QuantizedLayout& layout = segment.quantized;
  return kBiasBytes + static_cast<int>(quantized_offsets(layout, shape.head_dim).k_codes) +
         coded_bytes(layout.k, kPageTokens) + (values ? coded_bytes(layout.v, shape.head_dim) : 0);
}

class Planner {
 public:
  // values: true for attention(). attention_mass() and promises read keys only, and have partial results of every
  // split.
  Planner(const AttentionShape& shape, bool values, AttentionPlan& plan) : shape_(shape), values_(values), plan_(plan) {
    check_shape(shape);
    plan.segments.clear();
    plan.tasks.clear();
    plan.merges.clear();
    plan.partial_rows = 0;
    // Quantized pages are small. More of them at once, and more blocks side by side, keep as many bytes in flight.
    const int dense = dense_stage_bytes(shape, values);
    for (int i = 0; i < 4; ++i) {
      const bool small = i % 2 == 1;
      plan.classes[i].rows = i < 2 ? kFewRows : kManyRows;
      plan.classes[i].stages = small ? 3 : 2;
      plan.classes[i].stage_bytes = small ? 0 : dense;
      plan.classes[i].decoded_bytes = 0;
      plan.classes[i].items.clear();
    }
    small_page_ = dense * 5 / 8;
  }

  void add(std::span<const KvSegment> segments, const float* q, int64_t q_stride, int64_t n, void* out,
           int64_t out_stride = 0) {
    for (const KvSegment& segment : segments) {
      check(shape_, segment);
      if (segment.format == KvSegment::Format::kCut) throw std::invalid_argument("CUDA kernels: expected no cut pages");
    }
    if (n == 0) return;
    segments_ = segments;
    const int64_t tokens = tokens_of(segments);
    plan_.tasks.push_back(
        {q, q_stride, out, out_stride, tokens, static_cast<int32_t>(n), static_cast<int32_t>(plan_.segments.size())});
    int32_t scored = 0;
    for (const KvSegment& segment : segments) {
      plan_.segments.push_back(table_row(shape_, segment));
      if (segment.is_indexed() && segment.read < kPageTokens) plan_.segments.back().scored = scored++;
    }
    const int64_t group = shape_.n_heads / shape_.n_kv_heads;
    const int64_t most = !values_ || n * group <= kFewRows ? kFewRows : kManyRows;  // Probe queries are few.
    const int64_t heads = std::min(group, most), queries = std::min(n, most / heads);
    for (int64_t kv_head = 0; kv_head < shape_.n_kv_heads; ++kv_head) {
      for (int64_t head = 0; head < group; head += heads) {
        // Late queries see the most tokens. They go first, so that the last blocks are short.
        for (int64_t block = (n + queries - 1) / queries - 1; block >= 0; --block) {
          const int64_t query = block * queries, n_queries = std::min(queries, n - query);
          add_rows({static_cast<int32_t>(plan_.tasks.size()) - 1, static_cast<int32_t>(kv_head),
                    static_cast<int32_t>(head), static_cast<int32_t>(std::min(heads, group - head)),
                    static_cast<int32_t>(query), static_cast<int32_t>(n_queries), -1, 1},
                   most, tokens - n + query + n_queries);
        }
      }
    }
  }

 private:
  // Adds the items of these rows. seen: tokens that the last query sees.
  void add_rows(Rows rows, int64_t most, int64_t seen) {
    const int64_t per_split = most == kFewRows ? kFewRowsSplit : kManyRowsSplit;
    int64_t end = 0;
    for (int64_t start = 0; end < static_cast<int64_t>(segments_.size()) && start < seen; ++end) {
      start += segments_[static_cast<size_t>(end)].tokens;
    }
    // A split has calibrated pages alone, or none, because they take additional shared memory.
    ends_.clear();
    for (int64_t i = 0, first = 0; i < end; ++i) {
      const auto calibrated = [&](int64_t j) { return segments_[static_cast<size_t>(j)].table != nullptr; };
      if (i + 1 < end && i + 1 < first + per_split && calibrated(i) == calibrated(i + 1)) continue;
      ends_.push_back(i + 1);
      first = i + 1;
    }
    if (ends_.empty()) ends_.push_back(end);
    rows.splits = static_cast<int32_t>(ends_.size());
    if (rows.splits > 1 || !values_) {
      rows.partial = static_cast<int32_t>(plan_.partial_rows);
      plan_.partial_rows += int64_t{rows.splits} * rows.n_queries * rows.n_heads;
      plan_.merges.push_back(rows);
    }
    int64_t start = 0, first = 0;
    for (int32_t split = 0; split < rows.splits; ++split) {
      const int64_t last = ends_[static_cast<size_t>(split)];
      int64_t tokens = 0;
      int bytes = 0, decoded = 0;
      for (int64_t i = first; i < last; ++i) {
        const KvSegment& segment = segments_[static_cast<size_t>(i)];
        tokens += segment.tokens;
        if (segment.is_of(rows.kv_head)) bytes = std::max(bytes, stage_bytes(shape_, segment, values_));
        if (segment.table != nullptr) decoded = decoded_bytes(static_cast<int>(shape_.head_dim));
      }
      ItemClass& to = plan_.classes[(most == kFewRows ? 0 : 2) + (bytes <= small_page_ ? 1 : 0)];
      to.stage_bytes = std::max(to.stage_bytes, bytes);
      to.decoded_bytes = std::max(to.decoded_bytes, decoded);
      if (decoded > 0 && shape_.head_dim > 128) to.stages = 2;  // three would not fit
      to.items.push_back(
          {rows, split, static_cast<int32_t>(first), static_cast<int32_t>(last), static_cast<int32_t>(start)});
      start += tokens;
      first = last;
    }
  }

  const AttentionShape& shape_;
  const bool values_;
  AttentionPlan& plan_;
  std::span<const KvSegment> segments_;
  int small_page_ = 0;         // Most bytes of a small page.
  std::vector<int64_t> ends_;  // of the splits of rows, in segments
};

}  // namespace

void check_shape(const AttentionShape& shape) {
  if (shape.type != KvType::kBf16) throw std::invalid_argument("CUDA kernels: expected pages of bf16, found f32");
  if (shape.window > 0) {
    throw std::invalid_argument("CUDA kernels: expected attention to all tokens, found a sliding window of " +
                                std::to_string(shape.window) + " tokens; a context_length of at most that has none");
  }
  if (shape.soft_cap > 0) {
    throw std::invalid_argument("CUDA kernels: expected attention without a soft cap of its scores, found one of " +
                                std::to_string(shape.soft_cap));
  }
  if (shape.sinks != nullptr) {
    throw std::invalid_argument("CUDA kernels: expected attention without sinks, found those of " +
                                std::to_string(shape.n_heads) + " query heads");
  }
  kernels::check(shape);
}

Segment table_row(const AttentionShape& shape, const KvSegment& from) {
  Segment to = {};
  to.k = static_cast<const unsigned char*>(from.k);
  to.v = static_cast<const unsigned char*>(from.v);
  to.bias = from.bias;
  to.channel_order = from.channel_order;
  to.head_stride = from.head_stride;
  to.tokens = from.tokens;
  to.kv_head = from.kv_head;
  to.scored = -1;
  if (from.format == KvSegment::Format::kCalibrated) {
    if (from.table->on_device == nullptr)
      throw std::invalid_argument("CUDA kernels: the width table is not on the device");
    to.widths = reinterpret_cast<const unsigned char*>(from.table->on_device->data());
    to.within = from.table->rotations->within_on_device();
    to.middle = from.middle.device;
  } else if (from.format != KvSegment::Format::kDense) {
    const QuantizedOffsets at = quantized_offsets(from.quantized, shape.head_dim);
    to.k_zeros = static_cast<int32_t>(at.k_zeros);
    to.v_scales = static_cast<int32_t>(at.v_scales);
    to.v_zeros = static_cast<int32_t>(at.v_zeros);
    to.k_codes = static_cast<int32_t>(at.k_codes);
    to.v_codes = static_cast<int32_t>(at.v_codes);
    std::copy_n(from.quantized.k.quads.data(), 4, to.k_quads);
    std::copy_n(from.quantized.v.quads.data(), 4, to.v_quads);
  }
  return to;
}

AttentionShape page_shape(int64_t n_heads, int64_t head_dim) {
  return {n_heads, n_heads, head_dim, 1.0f, KvType::kBf16};
}

void check_dense(int64_t n_heads, int64_t head_dim, const KvSegment& page) {
  const AttentionShape shape = page_shape(n_heads, head_dim);
  check_shape(shape);
  kernels::check(shape, page);
  if (page.format != KvSegment::Format::kDense) {
    throw std::invalid_argument("CUDA kernels: expected dense pages, found quantized ones");
  }
}

void check_tokens(int64_t first, int64_t n) {
  if (first >= 0 && n >= 0 && first + n <= kPageTokens) return;
  throw std::invalid_argument("CUDA kernels: expected tokens of one page, found " + std::to_string(n) +
                              " tokens from token " + std::to_string(first));
}

Segment head_row(int64_t head_dim, const KvSegment& page, int64_t head, const uint8_t* channel_order) {
  const AttentionShape shape = page_shape(head + 1, head_dim);
  check_shape(shape);
  kernels::check(shape, page);
  if (page.table != nullptr) throw std::invalid_argument("CUDA kernels: expected no calibrated page");
  Segment row = table_row(shape, page);
  row.k += head * page.head_stride;
  row.channel_order = channel_order == nullptr ? nullptr : channel_order + head * head_dim;
  return row;
}

void plan_attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionPlan& plan) {
  Planner planner(shape, true, plan);
  for (const AttentionTask& task : tasks) planner.add(task.segments, task.q, task.q_stride, task.n, task.out);
}

void plan_attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks, AttentionPlan& plan) {
  Planner planner(shape, false, plan);
  for (const AttentionMassTask& task : tasks) planner.add(task.segments, task.q, task.q_stride, task.n, task.mass);
}

void plan_promises(const AttentionShape& shape, std::span<const PromiseTask> tasks, AttentionPlan& plan) {
  Planner planner(shape, false, plan);
  for (const PromiseTask& task : tasks)
    planner.add(task.segments, task.q, task.q_stride, task.n, task.promises, task.stride);
}

}  // namespace smartkv::kernels::cuda
