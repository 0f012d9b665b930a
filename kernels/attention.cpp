#include "kernels/attention.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>

#include "kernels/attention_kernels.h"
#include "kernels/calibrated_page.h"
#include "kernels/cpu_kernels.h"
#include "kernels/sparse_attention.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

void check_dense(const AttentionShape&, const KvSegment& segment) {
  if (segment.tokens < 0 || segment.tokens > kPageTokens) {
    throw std::invalid_argument("attention: expected a dense page of at most " + std::to_string(kPageTokens) +
                                " tokens, found " + std::to_string(segment.tokens));
  }
}

int64_t heads_of(const AttentionShape& shape, const KvSegment& segment) {
  return segment.kv_head < 0 ? shape.n_kv_heads : 1;
}

int64_t dense_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return heads_of(shape, segment) * 2 * kPageTokens * shape.head_dim * (shape.type == KvType::kBf16 ? 2 : 4);
}

void check_quantized(const AttentionShape& shape, const KvSegment& segment) {
  const QuantizedLayout& layout = segment.quantized;
  if (4 * layout.k.n_quads() != shape.head_dim || 4 * layout.v.n_quads() != kPageTokens ||
      segment.tokens != kPageTokens) {
    throw std::invalid_argument(
        "attention: expected a quantized page of " + std::to_string(kPageTokens) + " tokens and head_dim " +
        std::to_string(shape.head_dim) + ", found " + std::to_string(segment.tokens) + " tokens with codes of " +
        std::to_string(4 * layout.k.n_quads()) + " channels and " + std::to_string(4 * layout.v.n_quads()) + " tokens");
  }
}

int64_t quantized_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return heads_of(shape, segment) * quantized_offsets(segment.quantized, shape.head_dim).total;
}

void check_indexed(const AttentionShape& shape, const KvSegment& segment) {
  check_quantized(shape, segment);
  if (!is_row_bits(segment.row_bits)) {
    throw std::invalid_argument(
        "attention: expected an indexed page with rows of 4 or 8 bits, or dense rows (0), found " +
        std::to_string(segment.row_bits));
  }
  if (segment.read < 1 || segment.read > kPageTokens || segment.kv_head >= 0 || segment.bias != nullptr ||
      shape.window > 0) {
    throw std::invalid_argument(
        "attention: expected an indexed page of all KV heads, without bias or sliding window, and 1 to " +
        std::to_string(kPageTokens) + " tokens to read, found " + std::to_string(segment.read));
  }
}

int64_t indexed_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return quantized_bytes(shape, segment) +
         heads_of(shape, segment) * indexed_rows_bytes(shape.type, shape.head_dim, segment.row_bits);
}

void check_cut(const AttentionShape& shape, const KvSegment& segment) {
  const auto fits = [&](int32_t channels) {
    return channels >= 16 && channels <= shape.head_dim && channels % 16 == 0;
  };
  if (segment.tokens != kPageTokens || !fits(segment.k_channels) || !fits(segment.v_channels)) {
    throw std::invalid_argument("attention: expected a cut page of " + std::to_string(kPageTokens) +
                                " tokens with multiples of 16 channels, at most head_dim " +
                                std::to_string(shape.head_dim) + ", found " + std::to_string(segment.tokens) +
                                " tokens with " + std::to_string(segment.k_channels) + " channels of K and " +
                                std::to_string(segment.v_channels) + " of V");
  }
}

int64_t cut_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return heads_of(shape, segment) * kPageTokens * (segment.k_channels + segment.v_channels) *
         (shape.type == KvType::kBf16 ? 2 : 4);
}

void check_calibrated(const AttentionShape& shape, const KvSegment& segment) {
  const WidthTable* const table = segment.table;
  if (table != nullptr && table->head_dim == shape.head_dim && std::ssize(table->heads) == shape.n_kv_heads &&
      segment.middle.host != nullptr && segment.tokens == kPageTokens && segment.kv_head < 0) {
    return;
  }
  throw std::invalid_argument("attention: expected a calibrated page of " + std::to_string(kPageTokens) +
                              " tokens and all KV heads, with a table of " + std::to_string(shape.n_kv_heads) +
                              " KV heads and head_dim " + std::to_string(shape.head_dim) + ", found " +
                              std::to_string(segment.tokens) + " tokens and " +
                              (table == nullptr ? "no table"
                                                : "a table of " + std::to_string(table->heads.size()) +
                                                      " KV heads and head_dim " + std::to_string(table->head_dim)));
}

int64_t calibrated_bytes(const AttentionShape&, const KvSegment& segment) { return segment.table->bytes; }

const SegmentFormat& format_of(const KvSegment& segment) {
  return kSegmentFormatRows[static_cast<size_t>(segment.format)];
}

void check(const AttentionShape& shape, std::span<const KvSegment> segments) {
  for (const KvSegment& segment : segments) check(shape, segment);
}

int64_t splits_of(const AttentionTask& task) {
  return (static_cast<int64_t>(task.segments.size()) + kSplitSegments - 1) / kSplitSegments;
}

// Returns whether `a` and `b` are the same page for the same KV heads. No two pages share an address.
bool same_page(const KvSegment& a, const KvSegment& b) {
  return a.k == b.k && a.v == b.v && a.tokens == b.tokens && a.bias == b.bias && a.channel_order == b.channel_order &&
         a.kv_head == b.kv_head;
}

// Returns how many splits at the beginning of both tasks hold the same pages. Counts only splits of which every query
// sees all tokens.
int64_t common_splits(const AttentionShape& shape, const AttentionTask& a, const AttentionTask& b) {
  if (shape.window > 0 && std::max(tokens_of(a.segments), tokens_of(b.segments)) > shape.window) return 0;
  const auto end =
      std::mismatch(a.segments.begin(), a.segments.end(), b.segments.begin(), b.segments.end(), same_page).first;
  auto splits = static_cast<size_t>(end - a.segments.begin()) / kSplitSegments;
  // Fewest tokens that a first query sees.
  const int64_t seen = std::min(tokens_of(a.segments) - a.n, tokens_of(b.segments) - b.n) + 1;
  while (splits > 0 && tokens_of(a.segments.first(splits * kSplitSegments)) > seen) --splits;
  return static_cast<int64_t>(splits);
}

// Fills in scratch.order and scratch.groups. Tasks with the same number of queries that begin with the same pages form
// a group. A task of more than `most` queries forms a group of its own, which shares 0 splits.
void group(const AttentionShape& shape, std::span<const AttentionTask> tasks, int64_t most, AttentionScratch& scratch) {
  std::vector<int32_t>& order = scratch.order;
  order.resize(tasks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto task = [&](size_t i) -> const AttentionTask& { return tasks[static_cast<size_t>(order[i])]; };
  const auto first_page = [&](int32_t t) -> const void* {
    const AttentionTask& of = tasks[static_cast<size_t>(t)];
    return of.segments.empty() || of.n > most ? nullptr : of.segments[0].k;
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto key = [&](int32_t t) { return std::tuple(first_page(t), tasks[static_cast<size_t>(t)].n, t); };
    return key(a) < key(b);
  });
  scratch.groups.clear();
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    int64_t splits = splits_of(task(first));
    for (; end < order.size() && first_page(order[first]) != nullptr && task(end).n == task(first).n; ++end) {
      const int64_t common = common_splits(shape, task(first), task(end));
      if (common == 0) break;
      splits = std::min(splits, common);
    }
    scratch.groups.push_back(
        {static_cast<int32_t>(first), static_cast<int32_t>(end), static_cast<int32_t>(end - first > 1 ? splits : 0)});
    first = end;
  }
}

// Decides what each call of the kernels computes. Fills in the members, items and merges of the scratch, and makes room
// for the partial results.
class Planner {
 public:
  Planner(const AttentionShape& shape, std::span<const AttentionTask> tasks, int threads, AttentionScratch& scratch)
      : shape_(shape),
        tasks_(tasks),
        scratch_(scratch),
        alone_(threads == 1),
        heads_(std::min(shape.n_heads / shape.n_kv_heads, kMaxBlockRows)),
        queries_(std::max<int64_t>(1, kMaxBlockRows / heads_)),
        row_floats_(partial_floats(shape.head_dim)) {
    double work = 0;
    for (const AttentionTask& task : tasks) work += static_cast<double>(task.n * shape.n_heads * splits_of(task));
    share_ = work / (4.0 * threads);
  }

  void plan() {
    group(shape_, tasks_, queries_ / 2, scratch_);
    scratch_.members.clear();
    scratch_.items.clear();
    scratch_.merges.clear();
    const int64_t group_heads = shape_.n_heads / shape_.n_kv_heads;
    for (int64_t kv_head = 0; kv_head < shape_.n_kv_heads; ++kv_head) {
      for (const AttentionScratch::Group& group : scratch_.groups) {
        for (int64_t head = 0; head < group_heads; head += heads_) {
          kv_head_ = static_cast<int32_t>(kv_head);
          head_ = static_cast<int32_t>(head);
          n_heads_ = static_cast<int32_t>(std::min(heads_, group_heads - head));
          if (group.splits > 0) {
            add_shared(group);
          } else {
            add(scratch_.order[static_cast<size_t>(group.first)]);
          }
        }
      }
    }
    if (static_cast<int64_t>(scratch_.partial.size()) < partial_)
      scratch_.partial.resize(static_cast<size_t>(partial_));
  }

 private:
  // Returns the most splits of an item with `rows` rows. A larger item would leave other threads idle, so it is cut.
  int64_t splits_per_item(int64_t rows) const {
    return std::max<int64_t>(1, static_cast<int64_t>(share_ / static_cast<double>(std::max<int64_t>(1, rows))));
  }

  AttentionScratch::Item item(int64_t member, int64_t query, int64_t n_queries, int64_t splits) const {
    return {static_cast<int32_t>(member),
            1,
            kv_head_,
            head_,
            n_heads_,
            static_cast<int32_t>(query),
            static_cast<int32_t>(n_queries),
            0,
            static_cast<int32_t>(splits)};
  }

  int64_t add_member(int32_t task, int64_t rows, bool cut) {
    scratch_.members.push_back({task, cut ? partial_ : -1});
    if (cut) partial_ += splits_of(tasks_[static_cast<size_t>(task)]) * rows * row_floats_;
    return static_cast<int64_t>(scratch_.members.size()) - 1;
  }

  // Adds `whole`, from its first split on, as items of at most `per_item` splits.
  void add_pieces(AttentionScratch::Item whole, int64_t per_item) {
    for (const int32_t end = whole.split_end; whole.split < end; whole.split = whole.split_end) {
      whole.split_end = static_cast<int32_t>(std::min<int64_t>(whole.split + per_item, end));
      scratch_.items.push_back(whole);
    }
  }

  void add(int32_t t) {
    const AttentionTask& task = tasks_[static_cast<size_t>(t)];
    const int64_t splits = splits_of(task);
    // Late queries see the most tokens. They go first, so that the last items are short.
    for (int64_t block = (task.n + queries_ - 1) / queries_ - 1; block >= 0; --block) {
      const int64_t query = block * queries_, n_queries = std::min(queries_, task.n - query),
                    rows = n_queries * n_heads_;
      const bool cut = !alone_ && splits > splits_per_item(rows);
      const AttentionScratch::Item whole = item(add_member(t, rows, cut), query, n_queries, splits);
      if (cut) scratch_.merges.push_back(whole);
      add_pieces(whole, cut ? splits_per_item(rows) : splits);
    }
  }

  void add_shared(const AttentionScratch::Group& group) {
    const auto task = [&](int32_t i) { return scratch_.order[static_cast<size_t>(i)]; };
    const int64_t n = tasks_[static_cast<size_t>(task(group.first))].n, rows = n * n_heads_;
    const auto first = static_cast<int64_t>(scratch_.members.size());
    for (int32_t i = group.first; i < group.end; ++i) add_member(task(i), rows, true);
    const int64_t members = group.end - group.first, at_once = kMaxBlockRows / rows;
    for (int64_t m = 0; m < members; m += at_once) {
      AttentionScratch::Item shared = item(first + m, 0, n, group.splits);
      shared.n_members = static_cast<int32_t>(std::min(at_once, members - m));
      add_pieces(shared, splits_per_item(shared.n_members * rows));
    }
    for (int64_t m = 0; m < members; ++m) {
      const int32_t t = task(group.first + static_cast<int32_t>(m));
      AttentionScratch::Item own = item(first + m, 0, n, splits_of(tasks_[static_cast<size_t>(t)]));
      scratch_.merges.push_back(own);
      own.split = group.splits;
      add_pieces(own, splits_per_item(rows));
    }
  }

  const AttentionShape& shape_;
  std::span<const AttentionTask> tasks_;
  AttentionScratch& scratch_;
  bool alone_;               // There is only one thread: no task is cut to keep others busy.
  int64_t heads_, queries_;  // Most heads and most queries of a block.
  int64_t row_floats_;
  double share_ = 0;     // Rows times splits of an item: a quarter of an even share per thread.
  int64_t partial_ = 0;  // Floats of partial results so far.
  int32_t kv_head_ = 0, head_ = 0, n_heads_ = 0;
};

}  // namespace

void check(const AttentionShape& shape) {
  if (shape.head_dim <= 0 || shape.head_dim % 16 != 0 || shape.head_dim > kMaxHeadDim) {
    throw std::invalid_argument("attention: head_dim must be a multiple of 16 up to " + std::to_string(kMaxHeadDim) +
                                ", found " + std::to_string(shape.head_dim));
  }
  if (shape.n_kv_heads <= 0 || shape.n_heads % shape.n_kv_heads != 0) {
    throw std::invalid_argument("attention: n_heads " + std::to_string(shape.n_heads) +
                                " is not a multiple of n_kv_heads " + std::to_string(shape.n_kv_heads));
  }
  if (shape.window < 0) {
    throw std::invalid_argument("attention: window must be at least 0, found " + std::to_string(shape.window));
  }
  if (!(shape.soft_cap >= 0)) {
    throw std::invalid_argument("attention: soft_cap must be at least 0, found " + std::to_string(shape.soft_cap));
  }
  if (!(shape.scale > 0)) {
    throw std::invalid_argument("attention: scale must be above 0, found " + std::to_string(shape.scale));
  }
}

void check(const AttentionShape& shape, const KvSegment& segment) {
  format_of(segment).check(shape, segment);
  if (segment.kv_head >= shape.n_kv_heads) {
    throw std::invalid_argument("attention: expected a segment of a KV head below " + std::to_string(shape.n_kv_heads) +
                                ", found KV head " + std::to_string(segment.kv_head));
  }
}

constexpr SegmentFormat kSegmentFormatRows[kSegmentFormats] = {
    {check_dense, dense_bytes},            // KvSegment::Format::kDense
    {check_quantized, quantized_bytes},    // kQuantized
    {check_indexed, indexed_bytes},        // kIndexed
    {check_cut, cut_bytes},                // kCut
    {check_calibrated, calibrated_bytes},  // kCalibrated
};

KvSegment KvSegment::of_head(int64_t place, int64_t head) const {
  KvSegment segment = *this;
  segment.k = static_cast<const std::byte*>(k) + place * head_stride;
  segment.v = static_cast<const std::byte*>(v) + place * head_stride;
  segment.head_stride = 0;
  segment.kv_head = static_cast<int32_t>(head);
  return segment;
}

int64_t segment_bytes(const AttentionShape& shape, const KvSegment& segment) {
  return format_of(segment).bytes(shape, segment);
}

int64_t tokens_of(std::span<const KvSegment> segments) {
  int64_t tokens = 0;
  for (const KvSegment& segment : segments) tokens += segment.tokens;
  return tokens;
}

int64_t mass_offset(const AttentionShape& shape, const AttentionMassTask& task, int64_t query) {
  const int64_t first = tokens_of(task.segments) - task.n + 1;  // Tokens that the first query sees.
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
  tasks = sparse_attention(pool, shape, tasks, scratch);
  Planner(shape, tasks, pool.size(), scratch).plan();
  pool.parallel_for(static_cast<int64_t>(scratch.items.size()),
                    [&](int64_t i) { kernels.block(shape, tasks, scratch.items[static_cast<size_t>(i)], scratch); });
  pool.parallel_for(static_cast<int64_t>(scratch.merges.size()),
                    [&](int64_t i) { kernels.merge(shape, tasks, scratch.merges[static_cast<size_t>(i)], scratch); });
}

void attention_mass(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionScratch& scratch) {
  check(shape);
  for (const AttentionMassTask& task : tasks) check(shape, task.segments);
  const AttentionKernels& kernels = *cpu_kernels().attention;
  tasks = sparse_attention_mass(pool, shape, tasks, scratch);
  const int64_t group = shape.n_heads / shape.n_kv_heads;
  const int64_t heads_per_block = std::min(group, kMaxBlockRows);
  const int64_t queries_per_block = std::max<int64_t>(1, kMaxBlockRows / heads_per_block);
  scratch.items.clear();
  for (size_t t = 0; t < tasks.size(); ++t) {
    for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      for (int64_t query = 0; query < tasks[t].n; query += queries_per_block) {
        AttentionScratch::Item& item = scratch.items.emplace_back();
        item.member = static_cast<int32_t>(t);
        item.n_members = 1;
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
      kernels.mass(shape, tasks[static_cast<size_t>(item.member)], item);
    }
  });
}

}  // namespace smartkv::kernels
