#include "kernels/sparse_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "kernels/aligned_buffer.h"
#include "kernels/attention_kernels.h"
#include "kernels/cpu_kernels.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {

// Scratch of one thread, for one KV head of one query at a time.
struct SparseWorkspace {
  std::vector<KvSegment> visible;      // The task's segments, cut to the tokens that the query sees.
  std::vector<float> scores, promise;  // see AttentionKernels::promise
  std::vector<int32_t> scored;         // Indices of the segments that are read in part.
  std::vector<uint64_t> found;         // For each of `scored`, see AttentionKernels::greater.
  std::vector<uint64_t> read;          // For each segment, one bit per token that is read. Only for indexed segments.
  int64_t n_read = 0;                  // Tokens that are read.
  std::vector<IndexedRow> rows;        // Rows of the tokens that are read, then the means of the pages' other tokens.
  std::vector<float> counts;  // [n_kv_heads + pages][kPageTokens]: log of the number of tokens that an entry stands for
  AlignedBuffer pages;        // Gathered dense pages of one KV head.
  std::vector<KvSegment> segments;  // Segments that attention runs over.
  std::vector<float> mass;
  AttentionScratch scratch;
};

namespace {

constexpr uint64_t kWholePage = ~uint64_t{0};  // kPageTokens bits

// Calls function(i) for each set bit i, in ascending order.
template <typename Function>
void for_each_bit(uint64_t bits, const Function& function) {
  for (; bits != 0; bits &= bits - 1) function(std::countr_zero(bits));
}

template <typename Task>
bool has_indexed(const Task& task) {
  return std::any_of(task.segments.begin(), task.segments.end(), [](const KvSegment& s) { return s.is_indexed(); });
}

int64_t page_bytes(const AttentionShape& shape) { return kPageTokens * row_bytes(shape.type, shape.head_dim, 0); }

// Chooses and gathers what one KV head of one query of a task reads.
class SparseQuery {
 public:
  SparseQuery(const AttentionShape& shape, const float* q, int64_t kv_head, std::span<const KvSegment> segments,
              SparseWorkspace& work)
      : shape_(shape), q_(q), kv_head_(kv_head), segments_(segments), work_(work) {}

  // Returns the segments that attention runs over. seen: tokens of all segments that the query sees.
  std::span<const KvSegment> gathered(int64_t seen) {
    work_.visible.clear();
    for (size_t i = 0; i < segments_.size() && seen > 0; ++i) {
      KvSegment& segment = work_.visible.emplace_back(segments_[i]);
      segment.tokens = static_cast<int32_t>(std::min<int64_t>(seen, segment.tokens));
      seen -= segment.tokens;
    }
    choose();
    gather();
    work_.segments.clear();
    bool placed = false;
    for (const KvSegment& segment : work_.visible) {
      if (!segment.is_indexed()) {
        work_.segments.push_back(segment);
      } else if (!placed) {
        place();
        placed = true;
      }
    }
    return work_.segments;
  }

 private:
  // Chooses the tokens to read, as many as `budget`. They come from the steps of the greatest promises. From the last
  // of these steps the first tokens are taken.
  void choose() {
    work_.scored.clear();
    work_.read.assign(work_.visible.size(), kWholePage);
    int64_t budget = 0;
    for (size_t i = 0; i < work_.visible.size(); ++i) {
      const KvSegment& segment = work_.visible[i];
      if (!segment.is_indexed() || segment.read == kPageTokens) continue;
      work_.scored.push_back(static_cast<int32_t>(i));
      budget += segment.read;
    }
    if (work_.scored.empty()) return;
    const AttentionKernels& kernels = *cpu_kernels().attention;
    kernels.promise(shape_, q_, kv_head_, work_.visible, work_.scores.data(), work_.promise.data());
    work_.found.resize(work_.scored.size());
    const auto find = [&](int steps) {
      return kernels.greater(work_.promise.data(), work_.scored, promise_below(steps), work_.found.data());
    };
    int whole = 0;  // Steps that are read completely. Never all steps: less is read than there is.
    for (int end = kPromiseSteps; end - whole > 1;) {
      const int middle = (whole + end) / 2;
      (find(middle) <= budget ? whole : end) = middle;
    }
    budget -= find(whole);
    for (size_t i = 0; i < work_.scored.size(); ++i) work_.read[static_cast<size_t>(work_.scored[i])] = work_.found[i];
    if (whole + 1 < kPromiseSteps) {
      find(whole + 1);
    } else {
      std::fill(work_.found.begin(), work_.found.end(), kWholePage);
    }
    for (size_t i = 0; i < work_.scored.size() && budget > 0; ++i) {
      uint64_t& read = work_.read[static_cast<size_t>(work_.scored[i])];
      for (uint64_t left = work_.found[i] & ~read; left != 0 && budget > 0; left &= left - 1, --budget)
        read |= left & (~left + 1);
    }
  }

  // Fills dense pages with the rows that are read, and then with the means of the rest.
  void gather() {
    std::vector<IndexedRow>& rows = work_.rows;
    float* const counts = work_.counts.data() + kv_head_ * kPageTokens;
    work_.n_read = 0;
    int64_t pages = 0;
    for (size_t i = 0; i < work_.visible.size(); ++i) {
      if (!work_.visible[i].is_indexed()) continue;
      work_.n_read += std::popcount(work_.read[i]);
      ++pages;
    }
    rows.resize(static_cast<size_t>(work_.n_read + pages));
    IndexedRow* row = rows.data();
    auto mean = static_cast<size_t>(work_.n_read);
    for (size_t i = 0; i < work_.visible.size(); ++i) {
      const KvSegment& page = work_.visible[i];
      if (!page.is_indexed()) continue;
      const int bits = page.row_bits;
      const int64_t stride = row_bytes(shape_.type, shape_.head_dim, bits);
      const char* const of =
          static_cast<const char*>(page.v) + kv_head_ * indexed_rows_bytes(shape_.type, shape_.head_dim, bits);
      const char* const means = of + means_offset(shape_.type, shape_.head_dim, bits);
      for_each_bit(work_.read[i], [&](int t) {
        const char* const at = of + t * stride;
        *row++ = bits == 0 ? IndexedRow{at, nullptr, 0} : IndexedRow{means, at, bits};
      });
      if (work_.read[i] == kWholePage) continue;
      rows[mean] = {means, nullptr, 0};
      counts[mean++] = std::log(static_cast<float>(std::popcount(~work_.read[i])));
    }
    rows.resize(mean);
    std::fill_n(counts + work_.n_read / kPageTokens * kPageTokens, work_.n_read % kPageTokens, 0.0f);
    for (size_t i = 0; i < rows.size(); i += kPageTokens) {
      cpu_kernels().attention->gather(shape_, std::span(rows).subspan(i),
                                      work_.pages.data() + static_cast<int64_t>(i) / kPageTokens * page_bytes(shape_));
    }
  }

  // Appends the gathered pages to the segments.
  void place() {
    const auto n = static_cast<int64_t>(work_.rows.size());
    for (int64_t first = 0; first < n; first += kPageTokens) {
      KvSegment& segment = work_.segments.emplace_back();
      std::byte* const at = work_.pages.data() + first / kPageTokens * page_bytes(shape_);
      segment.tokens = static_cast<int32_t>(std::min(kPageTokens, n - first));
      segment.k = at;  // A page of one head has no stride.
      segment.v = at + page_bytes(shape_) / 2;
      segment.kv_head = static_cast<int32_t>(kv_head_);
      const bool has_means = first + segment.tokens > work_.n_read;
      // Points to the place of KV head 0. The values of this head lie kv_head_ pages behind it.
      if (has_means) segment.bias = work_.counts.data() + first;
    }
  }

  const AttentionShape& shape_;
  const float* q_;
  const int64_t kv_head_;
  std::span<const KvSegment> segments_;
  SparseWorkspace& work_;
};

AttentionScratch::Item item_of(const AttentionShape& shape, int64_t kv_head, int64_t head, int64_t segments) {
  AttentionScratch::Item item{};
  item.n_members = item.n_queries = 1;
  item.kv_head = static_cast<int32_t>(kv_head);
  item.head = static_cast<int32_t>(head);
  item.n_heads = static_cast<int32_t>(std::min(kMaxBlockRows, shape.n_heads / shape.n_kv_heads - head));
  item.split_end = static_cast<int32_t>((segments + kSplitSegments - 1) / kSplitSegments);
  return item;
}

void attend(const AttentionShape& shape, const AttentionTask& task, int64_t query, int64_t kv_head,
            SparseWorkspace& work) {
  const float* q = task.q + query * task.q_stride;
  const int64_t seen = tokens_of(task.segments) - (task.n - 1 - query);
  const std::span<const KvSegment> segments = SparseQuery(shape, q, kv_head, task.segments, work).gathered(seen);
  void* out = static_cast<char*>(task.out) + query * shape.n_heads * shape.head_dim * element_bytes(shape.type);
  const AttentionTask single{q, task.q_stride, 1, segments, out};
  for (int64_t head = 0; head < shape.n_heads / shape.n_kv_heads; head += kMaxBlockRows) {
    cpu_kernels().attention->block(shape, {&single, 1},
                                   item_of(shape, kv_head, head, static_cast<int64_t>(segments.size())), work.scratch);
  }
}

void attend(const AttentionShape& shape, const AttentionMassTask& task, int64_t query, int64_t kv_head,
            SparseWorkspace& work) {
  const float* q = task.q + query * task.q_stride;
  const int64_t seen = tokens_of(task.segments) - (task.n - 1 - query);
  const std::span<const KvSegment> segments = SparseQuery(shape, q, kv_head, task.segments, work).gathered(seen);
  const AttentionMassTask single{q, task.q_stride, 1, segments, work.mass.data()};
  for (int64_t head = 0; head < shape.n_heads / shape.n_kv_heads; head += kMaxBlockRows) {
    cpu_kernels().attention->mass(shape, single, item_of(shape, kv_head, head, static_cast<int64_t>(segments.size())));
  }
  const float* from = work.mass.data() + kv_head * tokens_of(segments);
  const float* gathered = nullptr;
  float* to = task.mass + mass_offset(shape, task, query) + kv_head * seen;
  for (size_t i = 0; i < work.visible.size(); ++i) {
    const KvSegment& segment = work.visible[i];
    if (!segment.is_indexed()) {
      std::copy_n(from, segment.tokens, to);
      from += segment.tokens;
    } else {
      if (gathered == nullptr) {
        gathered = from;
        from += work.rows.size();
      }
      std::fill_n(to, segment.tokens, 0.0f);
      for_each_bit(work.read[i], [&](int t) { to[t] = *gathered++; });
    }
    to += segment.tokens;
  }
}

// Makes room in a thread's workspace for any query of a task.
template <typename Task>
void make_room(const AttentionShape& shape, const Task& task, SparseWorkspace& work) {
  size_t read = 0;
  for (const KvSegment& segment : task.segments) read += static_cast<size_t>(segment.read);
  const size_t entries = task.segments.size() * kPageTokens;
  const auto grow = [](auto& vector, size_t size) {
    if (vector.size() < size) vector.resize(size);
  };
  const auto most = read + task.segments.size();  // Entries of the gathered pages.
  const size_t pages = (most + kPageTokens - 1) / kPageTokens;
  work.visible.reserve(task.segments.size());
  grow(work.scores, entries * static_cast<size_t>(shape.n_heads / shape.n_kv_heads));
  grow(work.promise, entries);
  work.scored.reserve(task.segments.size());
  work.found.reserve(task.segments.size());
  work.read.reserve(task.segments.size());
  work.rows.reserve(most);
  grow(work.counts, (static_cast<size_t>(shape.n_kv_heads) + pages) * kPageTokens);
  work.pages.grow(pages * static_cast<size_t>(page_bytes(shape)));
  work.segments.reserve(task.segments.size() + pages);
  if constexpr (std::is_same_v<Task, AttentionMassTask>) {
    grow(work.mass, static_cast<size_t>(shape.n_kv_heads) * (task.segments.size() + 1) * kPageTokens);
  }
  work.scratch.members.assign(1, {0, -1});
}

template <typename Task>
std::span<const Task> compute(ThreadPool& pool, const AttentionShape& shape, std::span<const Task> tasks,
                              AttentionScratch& scratch, std::vector<Task>& plain) {
  if (std::none_of(tasks.begin(), tasks.end(), has_indexed<Task>)) return tasks;
  while (scratch.sparse.size() < static_cast<size_t>(pool.size()))
    scratch.sparse.push_back(std::make_shared<SparseWorkspace>());
  plain.clear();
  scratch.items.clear();
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (!has_indexed(tasks[t])) {
      plain.push_back(tasks[t]);
      continue;
    }
    for (const auto& work : scratch.sparse) make_room(shape, tasks[t], *work);
    for (int64_t query = 0; query < tasks[t].n; ++query) {
      for (int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
        AttentionScratch::Item& item = scratch.items.emplace_back();
        item.member = static_cast<int32_t>(t);
        item.query = static_cast<int32_t>(query);
        item.kv_head = static_cast<int32_t>(kv_head);
      }
    }
  }
  std::atomic<size_t> next{0};
  pool.parallel_for(pool.size(), [&](int64_t worker) {
    for (size_t i = next++; i < scratch.items.size(); i = next++) {
      const AttentionScratch::Item& item = scratch.items[i];
      attend(shape, tasks[static_cast<size_t>(item.member)], item.query, item.kv_head,
             *scratch.sparse[static_cast<size_t>(worker)]);
    }
  });
  return plain;
}

}  // namespace

std::span<const AttentionTask> sparse_attention(ThreadPool& pool, const AttentionShape& shape,
                                                std::span<const AttentionTask> tasks, AttentionScratch& scratch) {
  return compute(pool, shape, tasks, scratch, scratch.plain);
}

std::span<const AttentionMassTask> sparse_attention_mass(ThreadPool& pool, const AttentionShape& shape,
                                                         std::span<const AttentionMassTask> tasks,
                                                         AttentionScratch& scratch) {
  return compute(pool, shape, tasks, scratch, scratch.plain_mass);
}

}  // namespace smartkv::kernels
