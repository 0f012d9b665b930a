#include "kernels/attention.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cpu_kernels.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

void check(const AttentionShape& shape) {
  if (shape.head_dim <= 0 || shape.head_dim % 16 != 0 || shape.head_dim > kMaxHeadDim) {
    throw std::invalid_argument("attention: head_dim must be a multiple of 16 up to " + std::to_string(kMaxHeadDim) +
                                ", found " + std::to_string(shape.head_dim));
  }
  if (shape.n_kv_heads <= 0 || shape.n_heads % shape.n_kv_heads != 0) {
    throw std::invalid_argument("attention: n_heads " + std::to_string(shape.n_heads) +
                                " is no multiple of n_kv_heads " + std::to_string(shape.n_kv_heads));
  }
  if (!(shape.scale > 0)) {
    throw std::invalid_argument("attention: scale must be above 0, found " + std::to_string(shape.scale));
  }
}

void check_dense(const AttentionShape&, const KvSegment& segment) {
  if (segment.tokens < 0 || segment.tokens > kPageTokens) {
    throw std::invalid_argument("attention: expected a dense page of at most " + std::to_string(kPageTokens) +
                                " tokens, found " + std::to_string(segment.tokens));
  }
}

int64_t dense_bytes(const AttentionShape& shape, const KvSegment&) {
  return 2 * kPageTokens * shape.head_dim * (shape.type == KvType::kBf16 ? 2 : 4);
}

void check_quantized(const AttentionShape& shape, const KvSegment& segment) {
  const QuantizedLayout& layout = segment.quantized;
  if (shape.head_dim % 64 != 0 || 4 * layout.k.n_quads() != shape.head_dim || 4 * layout.v.n_quads() != kPageTokens ||
      segment.tokens != kPageTokens) {
    throw std::invalid_argument("attention: expected a quantised page of " + std::to_string(kPageTokens) +
                                " tokens and head_dim " + std::to_string(shape.head_dim) +
                                " (a multiple of 64), found " + std::to_string(segment.tokens) +
                                " tokens with codes of " + std::to_string(4 * layout.k.n_quads()) + " channels and " +
                                std::to_string(4 * layout.v.n_quads()) + " tokens");
  }
}

int64_t quantized_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return quantized_offsets(segment.quantized, shape.head_dim).total;
}

const SegmentFormat& format_of(const KvSegment& segment) {
  return kSegmentFormatRows[static_cast<size_t>(segment.format)];
}

void check(const AttentionShape& shape, std::span<const KvSegment> segments) {
  for (const KvSegment& segment : segments) format_of(segment).check(shape, segment);
}

int64_t stretches_of(const AttentionTask& task) {
  return (static_cast<int64_t>(task.segments.size()) + kStretchSegments - 1) / kStretchSegments;
}

}  // namespace

constexpr SegmentFormat kSegmentFormatRows[kSegmentFormats] = {
    {check_dense, dense_bytes},          // KvSegment::Format::kDense
    {check_quantized, quantized_bytes},  // kQuantized
};

int64_t segment_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return shape.n_kv_heads * format_of(segment).head_bytes(shape, segment);
}

int64_t tokens_of(std::span<const KvSegment> segments) {
  int64_t tokens = 0;
  for (const KvSegment& segment : segments) tokens += segment.tokens;
  return tokens;
}

int64_t mass_offset(const AttentionShape& shape, const AttentionMassTask& task, int64_t query) {
  const int64_t first = tokens_of(task.segments) - task.n + 1;  // tokens that the first query sees
  return shape.n_kv_heads * (query * first + query * (query - 1) / 2);
}

int64_t attention_mass_floats(const AttentionShape& shape, const AttentionMassTask& task) {
  return mass_offset(shape, task, task.n);
}

void attention(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionTask> tasks,
               AttentionScratch& scratch) {
  check(shape);
  for (const AttentionTask& task : tasks) check(shape, task.segments);
  const AttentionKernels& kernels = *cpu_kernels().attention;
  const int64_t group = shape.n_heads / shape.n_kv_heads;
  const int64_t heads_per_block = std::min(group, kMaxBlockRows);
  const int64_t queries_per_block = std::max<int64_t>(1, kMaxBlockRows / heads_per_block);

  // A block whose share of the work would leave other threads idle is cut into stretches, whose results are merged.
  double work = 0;
  for (const AttentionTask& task : tasks) work += static_cast<double>(task.n * shape.n_heads * stretches_of(task));
  const double share = work / (4.0 * pool.size());

  scratch.items.clear();
  scratch.merges.clear();
  int64_t partial = 0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const AttentionTask& task = tasks[t];
    const int64_t stretches = stretches_of(task);
    for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      for (int64_t head = 0; head < group; head += heads_per_block) {
        const int64_t n_heads = std::min(heads_per_block, group - head);
        // Late queries see the most tokens: first, so that the last items are short.
        for (int64_t block = (task.n + queries_per_block - 1) / queries_per_block - 1; block >= 0; --block) {
          const int64_t query = block * queries_per_block, n_queries = std::min(queries_per_block, task.n - query);
          const int64_t rows = n_queries * n_heads;
          AttentionScratch::Item item{static_cast<int32_t>(t),         static_cast<int32_t>(kv_head),
                                      static_cast<int32_t>(head),      static_cast<int32_t>(n_heads),
                                      static_cast<int32_t>(query),     static_cast<int32_t>(n_queries),
                                      0,                               static_cast<int32_t>(stretches),
                                      -1};
          const int64_t per_item =
              std::max<int64_t>(1, static_cast<int64_t>(share / static_cast<double>(std::max<int64_t>(1, rows))));
          if (pool.size() == 1 || stretches <= per_item) {
            scratch.items.push_back(item);
            continue;
          }
          item.partial = partial;
          scratch.merges.push_back(item);
          for (int64_t s = 0; s < stretches; s += per_item) {
            item.stretch = static_cast<int32_t>(s);
            item.stretch_end = static_cast<int32_t>(std::min(s + per_item, stretches));
            item.partial = partial + s * rows * partial_floats(shape.head_dim);
            scratch.items.push_back(item);
          }
          partial += stretches * rows * partial_floats(shape.head_dim);
        }
      }
    }
  }
  if (static_cast<int64_t>(scratch.partial.size()) < partial) scratch.partial.resize(static_cast<size_t>(partial));

  pool.parallel_for(static_cast<int64_t>(scratch.items.size()), [&](int64_t i) {
    const AttentionScratch::Item& item = scratch.items[static_cast<size_t>(i)];
    kernels.block(shape, tasks[static_cast<size_t>(item.task)], item,
                  item.partial < 0 ? nullptr : scratch.partial.data() + item.partial);
  });
  for (const AttentionScratch::Item& item : scratch.merges) {
    kernels.merge(shape, tasks[static_cast<size_t>(item.task)], item, scratch.partial.data() + item.partial);
  }
}

void attention_mass(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionScratch& scratch) {
  check(shape);
  for (const AttentionMassTask& task : tasks) check(shape, task.segments);
  const AttentionKernels& kernels = *cpu_kernels().attention;
  const int64_t group = shape.n_heads / shape.n_kv_heads;
  const int64_t heads_per_block = std::min(group, kMaxBlockRows);
  const int64_t queries_per_block = std::max<int64_t>(1, kMaxBlockRows / heads_per_block);
  scratch.items.clear();
  for (size_t t = 0; t < tasks.size(); ++t) {
    for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      for (int64_t query = 0; query < tasks[t].n; query += queries_per_block) {
        AttentionScratch::Item& item = scratch.items.emplace_back();
        item.task = static_cast<int32_t>(t);
        item.kv_head = static_cast<int32_t>(kv_head);
        item.query = static_cast<int32_t>(query);
        item.n_queries = static_cast<int32_t>(std::min(queries_per_block, tasks[t].n - query));
      }
    }
  }
  pool.parallel_for(static_cast<int64_t>(scratch.items.size()), [&](int64_t i) {
    AttentionScratch::Item item = scratch.items[static_cast<size_t>(i)];
    for (int64_t head = 0; head < group; head += heads_per_block) {
      item.head = static_cast<int32_t>(head);
      item.n_heads = static_cast<int32_t>(std::min(heads_per_block, group - head));
      kernels.mass(shape, tasks[static_cast<size_t>(item.task)], item);
    }
  });
}

}  // namespace smartkv::kernels
