#include "kernels/cuda/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"
#include "kernels/indexed_rows.h"
#include "kernels/sparse_attention.h"

namespace smartkv::kernels::cuda {

// An indexed page of a task.
struct SparsePage {
  const unsigned char* rows;  // Rows of KV head 0. The other heads follow, head_bytes apart.
  int64_t head_bytes;
  int32_t row_bytes, row_bits, means;  // means: their offset from a KV head's first row
  int32_t scored;                      // Its number among the pages that are not read whole. -1: it is read whole.
  int32_t start;                       // Its first token among the task's tokens.
};

// A query, and where its data lies.
struct SparseQuery {
  const float* promises;  // As in PromiseTask.
  // [n_kv_heads, n_entries]. A token is kPage page + slot. A mean is -1 - page; means come last.
  int32_t* entries;
  unsigned char* gathered;  // Dense pages of all KV heads.
  float* bias;              // [gathered pages from first_bias on][n_kv_heads][kPage]
  int32_t page, n_pages;    // Its indexed pages in the table.
  // budget: tokens to read from pages that are not read whole.
  int32_t n_read, n_entries, budget, first_bias;
  // For attention_mass(): the mass of the gathered and the other tokens, and where the mass of all tokens goes. Strides
  // are from one KV head to the next.
  const float* mass;
  float* to;
  int64_t mass_stride, to_stride;
  int32_t gathered_start, run, n_runs;  // gathered_start: in `mass`; run: in the table of runs
};

// A run of tokens of other pages, in SparseQuery::mass and in SparseQuery::to.
struct MassRun {
  int32_t from, to, n;
};

namespace {

constexpr int kChooseThreads = 512, kChooseWarps = kChooseThreads / 32;
static_assert(kChooseThreads == kPromiseSteps, "each thread adds up one step");
constexpr int kAhead = 4;  // Pages that a warp reads at once.
// Bias of an entry that stands for no tokens. Its weight is 0 even with kNoMaximum.
constexpr float kNoTokens = -1e37f;

// The shared memory of a block that chooses. Each warp has a range of the pages.
struct Choosing {
  int steps[kChooseWarps][kPromiseSteps];  // Tokens at each step.
  int whole[kChooseWarps];                 // Pages that are read whole.
  int sums[kChooseWarps];
  int last, left;  // All tokens of the steps before `last` are read, and the first `left` tokens of `last`.
};

// Steps of tokens 2 lane and 2 lane + 1 of a page.
struct Steps {
  int even, odd;
};

// The choice of a KV head of a query, by a block.
class Choice {
 public:
  __device__ Choice(const SparseQuery& query, const SparsePage* pages, int head, int n_kv_heads, int parts)
      : query_(query),
        pages_(pages + query.page),
        head_(head),
        kv_heads_(n_kv_heads),
        parts_(parts),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        shared_(*reinterpret_cast<Choosing*>(shared_memory())),
        entries_(query.entries + int64_t{head} * query.n_entries) {
    const int split = (query.n_pages + kChooseWarps - 1) / kChooseWarps, from = warp_ * split, to = from + split;
    first_ = from < query.n_pages ? from : query.n_pages;
    end_ = to < query.n_pages ? to : query.n_pages;
  }

  __device__ void run() {
    count();
    find_last();
    write();
  }

 private:
  // Calls visit(page, steps) for the warp's pages, in order.
  template <typename Visit>
  __device__ void for_pages(const Visit& visit) const {
    for (int first = first_; first < end_; first += kAhead) {
      Steps steps[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int page = first + ahead;
        steps[ahead] = page < end_ && pages_[page].scored >= 0 ? steps_of(pages_[page].scored) : Steps{0, 0};
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        if (first + ahead < end_) visit(first + ahead, steps[ahead]);
      }
    }
  }
  __device__ Steps steps_of(int scored) const {
    const float* from = query_.promises + (int64_t{scored} * kv_heads_ + head_) * parts_ * kPage + 2 * lane_;
    float2 sum = *reinterpret_cast<const float2*>(from);
    for (int part = 1; part < parts_; ++part) {
      const float2 more = *reinterpret_cast<const float2*>(from + part * kPage);
      sum = make_float2(sum.x + more.x, sum.y + more.y);
    }
    return {promise_step(__float_as_uint(sum.x)), promise_step(__float_as_uint(sum.y))};
  }

  __device__ void count() {
    int* const counts = shared_.steps[warp_];
    for (int step = lane_; step < kPromiseSteps; step += 32) counts[step] = 0;
    __syncwarp();
    int whole = 0, least = 0;  // least: tokens at the last step, where most tokens are
    const auto add = [&](int step) {
      if (step == kPromiseSteps - 1) {
        ++least;
      } else {
        atomicAdd(&counts[step], 1);
      }
    };
    for_pages([&](int page, Steps steps) {
      if (pages_[page].scored < 0) {
        ++whole;
      } else {
        add(steps.even);
        add(steps.odd);
      }
    });
    atomicAdd(&counts[kPromiseSteps - 1], least);
    if (lane_ == 0) shared_.whole[warp_] = whole;
    if (thread_ == 0) shared_.last = shared_.left = 0;
    __syncthreads();
  }

  __device__ void find_last() {
    int here = 0;
    for (const auto& counts : shared_.steps) here += counts[thread_];
    int sum = here;
    for (int step = 1; step < 32; step *= 2) {
      const int others = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
      if (lane_ >= step) sum += others;
    }
    if (lane_ == 31) shared_.sums[warp_] = sum;
    __syncthreads();
    for (int warp = 0; warp < warp_; ++warp) sum += shared_.sums[warp];
    if (sum - here <= query_.budget && query_.budget < sum) {
      shared_.last = thread_;
      shared_.left = query_.budget - (sum - here);
    }
    __syncthreads();
  }

  __device__ void write() const {
    const int last = shared_.last, left = shared_.left;
    // In the warps before this one: tokens of steps before the last, tokens of the last step, pages that are read
    // whole.
    int less = 0, rank = 0, whole = 0;
    for (int warp = 0; warp < warp_; ++warp) {
      for (int step = lane_; step < last; step += 32) less += shared_.steps[warp][step];
      rank += shared_.steps[warp][last];
      whole += shared_.whole[warp];
    }
    int at = kPage * whole + sum_of_warp(less) + (rank < left ? rank : left);
    for (int entry = query_.first_bias * kPage + thread_; entry < query_.n_read; entry += kChooseThreads)
      *bias(entry) = 0.0f;
    const unsigned before = (1u << lane_) - 1;  // The lanes before this one.
    for_pages([&](int page, Steps steps) {
      const int token = page * kPage + 2 * lane_, scored = pages_[page].scored;
      if (scored < 0) {
        entries_[at + 2 * lane_] = token;
        entries_[at + 2 * lane_ + 1] = token + 1;
        at += kPage;
        return;
      }
      const unsigned even_ties = __ballot_sync(kAllLanes, steps.even == last);
      const unsigned odd_ties = __ballot_sync(kAllLanes, steps.odd == last);
      const int tie = rank + __popc(even_ties & before) + __popc(odd_ties & before);
      const bool even = steps.even < last || (steps.even == last && tie < left);
      const bool odd = steps.odd < last || (steps.odd == last && tie + (steps.even == last ? 1 : 0) < left);
      const unsigned evens = __ballot_sync(kAllLanes, even), odds = __ballot_sync(kAllLanes, odd);
      const int mine = at + __popc(evens & before) + __popc(odds & before);
      if (even) entries_[mine] = token;
      if (odd) entries_[mine + (even ? 1 : 0)] = token + 1;
      const int n = __popc(evens) + __popc(odds);
      if (lane_ == 0) {
        const int mean = query_.n_read + scored;
        entries_[mean] = -1 - page;
        *bias(mean) = n < kPage ? logf(static_cast<float>(kPage - n)) : kNoTokens;
      }
      at += n;
      rank += __popc(even_ties) + __popc(odd_ties);
    });
  }
  __device__ float* bias(int entry) const {
    return query_.bias + (int64_t{entry / kPage - query_.first_bias} * kv_heads_ + head_) * kPage + entry % kPage;
  }

  const SparseQuery& query_;
  const SparsePage* const pages_;
  const int head_, kv_heads_, parts_, thread_, warp_, lane_;
  Choosing& shared_;
  int32_t* const entries_;
  int first_, end_;
};

__global__ void __launch_bounds__(kChooseThreads, 2)
    choose_kernel(const SparseQuery* queries, const SparsePage* pages, int n_kv_heads, int parts) {
  const auto block = static_cast<int>(blockIdx.x);
  Choice(queries[block / n_kv_heads], pages, block % n_kv_heads, n_kv_heads, parts).run();
}

struct GatherItem {
  int32_t query, page;  // page: its number among the gathered pages
};

// Where the row of an entry lies.
struct Source {
  const unsigned char* row;
  const unsigned char* means;  // The means of its page.
  int32_t bits;                // Bits of the row's codes. 0: the row is dense. kNone: there is no entry.
  static constexpr int32_t kNone = -1;
};

// Returns values 8 unit, ..., 8 unit + 7 of a row [2][head_dim], as bf16.
__device__ __forceinline__ uint4 values_of(const Source& source, int unit, int head_dim) {
  if (source.bits == Source::kNone) return {0, 0, 0, 0};
  if (source.bits == 0) return reinterpret_cast<const uint4*>(source.row)[unit];
  const uint4 means = reinterpret_cast<const uint4*>(source.means)[unit];
  const float step =
      reinterpret_cast<const float*>(source.row + 2 * head_dim * source.bits / 8)[8 * unit >= head_dim ? 1 : 0];
  const float least = __fmul_rn(__fmul_rn(step, -0.5f), static_cast<float>((1 << source.bits) - 1));
  uint32_t codes[2];  // Four values each, one per byte or nibble.
  if (source.bits == 8) {
    const uint2 eight = reinterpret_cast<const uint2*>(source.row)[unit];
    codes[0] = eight.x;
    codes[1] = eight.y;
  } else {
    codes[0] = reinterpret_cast<const uint32_t*>(source.row)[unit];
    codes[1] = codes[0] >> 16;
  }
  const uint32_t mask = (1u << source.bits) - 1;
  const auto value = [&](int i, float mean) {
    const auto code = static_cast<float>(codes[i / 4] >> (source.bits * (i % 4)) & mask);
    return fmaf(code, step, __fadd_rn(mean, least));
  };
  const auto pair = [&](int i, uint32_t mean) {
    return pack_bf16(value(i, low_bf16(mean)), value(i + 1, high_bf16(mean)));
  };
  return {pair(0, means.x), pair(2, means.y), pair(4, means.z), pair(6, means.w)};
}

// A block takes a KV head of a gathered page. Shared memory transposes the rows: neighbors in K are slots.
__global__ void __launch_bounds__(kThreads) gather_kernel(const SparseQuery* queries, const SparsePage* pages,
                                                          const GatherItem* items, int n_kv_heads, int head_dim) {
  const int head = static_cast<int>(blockIdx.x) % n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const GatherItem item = items[static_cast<int>(blockIdx.x) / n_kv_heads];
  const SparseQuery& query = queries[item.query];
  auto* const sources = reinterpret_cast<Source*>(shared_memory());
  auto* const rows = reinterpret_cast<uint32_t*>(sources + kPage);
  if (thread < kPage) {
    Source source = {nullptr, nullptr, Source::kNone};
    const int at = item.page * kPage + thread;
    if (at < query.n_entries) {
      const int entry = query.entries[int64_t{head} * query.n_entries + at];
      const SparsePage& page = pages[query.page + (entry < 0 ? -1 - entry : entry / kPage)];
      const unsigned char* const of_head = page.rows + head * page.head_bytes;
      source.means = of_head + page.means;
      source.row = entry < 0 ? source.means : of_head + entry % kPage * page.row_bytes;
      source.bits = entry < 0 ? 0 : page.row_bits;
    }
    sources[thread] = source;
  }
  __syncthreads();
  // For K and V together. row_words is odd, so that columns meet no bank twice.
  const int units = head_dim / 4, row_words = head_dim + 1;
#pragma unroll 4
  for (int i = thread; i < kPage * units; i += kThreads) {
    const int row = i / units, unit = i % units;
    const uint4 words = values_of(sources[row], unit, head_dim);
    uint32_t* const to = rows + row * row_words + 4 * unit;
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
  }
  __syncthreads();
  const int page_words = kPage * head_dim;  // For K and V together.
  auto* const to_k =
      reinterpret_cast<uint32_t*>(query.gathered) + (int64_t{item.page} * n_kv_heads + head) * page_words;
  for (int i = thread; i < page_words / 2; i += kThreads) to_k[i] = rows[i % kPage * row_words + i / kPage];
  uint32_t* const to_v = to_k + page_words / 2;
  for (int i = thread; i < page_words / 2; i += kThreads) {
    const int slot = 2 * (i / head_dim), d = i % head_dim;
    const uint32_t* const word = rows + slot * row_words + (head_dim + d) / 2;
    to_v[i] = __byte_perm(word[0], word[row_words], d % 2 == 0 ? 0x5410 : 0x7632);
  }
}

// A block takes a KV head of a query.
__global__ void __launch_bounds__(kThreads)
    hand_out_kernel(const SparseQuery* queries, const SparsePage* pages, const MassRun* runs, int n_kv_heads) {
  const int head = static_cast<int>(blockIdx.x) % n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const SparseQuery& query = queries[static_cast<int>(blockIdx.x) / n_kv_heads];
  const float* const from = query.mass + head * query.mass_stride;
  float* const to = query.to + head * query.to_stride;
  for (int i = query.run; i < query.run + query.n_runs; ++i) {
    const MassRun run = runs[i];
    for (int t = thread; t < run.n; t += kThreads) to[run.to + t] = from[run.from + t];
  }
  for (int i = thread; i < query.n_pages * kPage; i += kThreads)
    to[pages[query.page + i / kPage].start + i % kPage] = 0.0f;
  __syncthreads();
  const int32_t* const entries = query.entries + int64_t{head} * query.n_entries;
  for (int i = thread; i < query.n_read; i += kThreads) {
    const int entry = entries[i];
    to[pages[query.page + entry / kPage].start + entry % kPage] = from[query.gathered_start + i];
  }
}

bool has_indexed(std::span<const KvSegment> segments) {
  return std::any_of(segments.begin(), segments.end(), [](const KvSegment& segment) { return segment.is_indexed(); });
}

}  // namespace

size_t choice_bytes() { return sizeof(Choosing); }
size_t gather_bytes(int64_t head_dim) {
  return kPageTokens * (sizeof(Source) + static_cast<size_t>(head_dim + 1) * sizeof(uint32_t));
}

template <typename Task>
SparseBatches<Task>::SparseBatches(const AttentionShape& shape, std::span<const Task> tasks, SparseWorkspace& workspace)
    : shape_(shape), workspace_(workspace), all_(tasks), batch_(std::get<std::vector<Task>>(workspace.tasks)) {
  for (const Task& task : tasks) {
    for (const KvSegment& segment : task.segments) check(shape, segment);
  }
  to_next_task();
}

// Advances task_ to the first task, from task_ on, that has queries and indexed pages.
template <typename Task>
void SparseBatches<Task>::to_next_task() {
  query_ = 0;
  while (task_ < all_.size() && (all_[task_].n == 0 || !has_indexed(all_[task_].segments))) ++task_;
}

// Returns the plan of the next query.
template <typename Task>
SparsePlan SparseBatches<Task>::plan() const {
  const Task& task = all_[task_];
  SparsePlan of;
  of.task = task_;
  of.query = query_;
  of.seen = tokens_of(task.segments) - (task.n - 1 - query_);
  of.others = of.seen;
  for (const KvSegment& segment : task.segments) {
    if (!segment.is_indexed()) continue;
    of.others -= kPageTokens;
    of.read += segment.read;
    if (segment.read == kPageTokens) continue;
    of.budget += segment.read;
    ++of.scored;
  }
  of.entries = of.read + of.scored;
  of.pages = (of.entries + kPageTokens - 1) / kPageTokens;
  of.first_bias = of.scored > 0 ? of.read / kPageTokens : of.pages;
  const auto room = [&](int64_t rows, int64_t bytes) {  // Room for each KV head.
    const size_t at = of.end;
    of.end += (static_cast<size_t>(shape_.n_kv_heads * rows * bytes) + 255) / 256 * 256;
    return at;
  };
  const int parts = promise_parts(static_cast<int>(shape_.n_heads / shape_.n_kv_heads));
  of.promises = room(of.scored * parts * kPageTokens, sizeof(float));
  of.list = room(of.entries, sizeof(int32_t));
  of.bias = room((of.pages - of.first_bias) * kPageTokens, sizeof(float));
  // Room as for the last query, so that the promises of all queries lie equally far apart.
  const int64_t mass = of.entries + of.others + task.n - 1 - query_;
  of.mass = room(std::is_same_v<Task, AttentionMassTask> ? mass : 0, sizeof(float));
  of.gathered = room(of.pages, kPageTokens * row_bytes(shape_.type, shape_.head_dim, 0));
  return of;
}

template <typename Task>
bool SparseBatches<Task>::next() {
  SparseWorkspace& work = workspace_;
  batch_.clear();
  if (!started_) {
    const auto is_plain = [](const Task& task) { return !has_indexed(task.segments); };
    std::copy_if(all_.begin(), all_.end(), std::back_inserter(batch_), is_plain);
  }
  work.plans.clear();
  size_t bytes = 0, segments = 0;
  while (task_ < all_.size()) {
    const SparsePlan next = plan();
    if (!work.plans.empty() && bytes + next.end > work.most_bytes) break;
    bytes += next.end;
    segments += 2 * all_[task_].segments.size() + static_cast<size_t>(next.pages);
    work.plans.push_back(next);
    if (++query_ < all_[task_].n) continue;
    ++task_;
    to_next_task();
  }
  for (auto* const table : {&work.pages, &work.queries, &work.items, &work.runs}) table->clear();
  work.promises.clear();
  work.segments.clear();
  work.segments.reserve(segments);  // Tasks point into it.
  std::byte* memory = bytes > 0 ? work.memory.reserve(bytes) : nullptr;
  for (const SparsePlan& of : work.plans) {
    add(of, memory);
    memory += of.end;
  }
  return !std::exchange(started_, true) || !work.plans.empty();
}

template <typename Task>
void SparseBatches<Task>::add(const SparsePlan& of, std::byte* memory) {
  constexpr bool kMass = std::is_same_v<Task, AttentionMassTask>;
  SparseWorkspace& work = workspace_;
  const Task& task = all_[of.task];
  SparseQuery row = {};
  row.promises = reinterpret_cast<const float*>(memory + of.promises);
  row.entries = reinterpret_cast<int32_t*>(memory + of.list);
  row.bias = reinterpret_cast<float*>(memory + of.bias);
  row.gathered = reinterpret_cast<unsigned char*>(memory + of.gathered);
  const bool follows = &of != work.plans.data() && (&of - 1)->task == of.task;  // Its pages are those of the same task.
  if (follows) {
    const SparseQuery& before = rows_of<SparseQuery>(work.queries).back();
    row.page = before.page;
    row.n_pages = before.n_pages;
  } else {
    row.page = static_cast<int32_t>(rows_of<SparsePage>(work.pages).size());
    row.n_pages = add_pages(task.segments);
  }
  row.n_read = static_cast<int32_t>(of.read);
  row.n_entries = static_cast<int32_t>(of.entries);
  row.budget = static_cast<int32_t>(of.budget);
  row.first_bias = static_cast<int32_t>(of.first_bias);
  const auto number = static_cast<int32_t>(rows_of<SparseQuery>(work.queries).size());
  for (int32_t page = 0; page < of.pages; ++page) append_row(GatherItem{number, page}, &work.items);

  Task single = {task.q + of.query * task.q_stride, task.q_stride, 1, {}, nullptr};
  const auto segments_from = [&](size_t begin) { return std::span<const KvSegment>(work.segments).subspan(begin); };
  const size_t seen = work.segments.size();
  int64_t left = of.seen;
  for (size_t i = 0; i < task.segments.size() && left > 0; ++i) {
    KvSegment& segment = work.segments.emplace_back(task.segments[i]);
    segment.tokens = static_cast<int32_t>(std::min<int64_t>(left, segment.tokens));
    left -= segment.tokens;
  }
  if (of.scored > 0) {
    if (!follows) {
      work.promises.push_back({single.q,
                               single.q_stride,
                               0,
                               {},
                               reinterpret_cast<float*>(memory + of.promises),
                               static_cast<int64_t>(of.end / sizeof(float))});
    }
    ++work.promises.back().n;
    work.promises.back().segments = segments_from(seen);
  }
  const size_t attended = work.segments.size();
  row.run = static_cast<int32_t>(rows_of<MassRun>(work.runs).size());
  int32_t from = 0, to = 0;  // Tokens so far: from: of those that attention runs over; to: of the task.
  bool gathered = false;
  for (size_t i = seen; i < attended; ++i) {
    const KvSegment segment = work.segments[i];
    if (!segment.is_indexed()) {
      work.segments.push_back(segment);
      if (kMass) append_row(MassRun{from, to, segment.tokens}, &work.runs);
      from += segment.tokens;
    } else if (!gathered) {
      gathered = true;
      row.gathered_start = from;
      add_gathered(of, memory);
      from += row.n_entries;
    }
    to += segment.tokens;
  }
  row.n_runs = static_cast<int32_t>(rows_of<MassRun>(work.runs).size()) - row.run;
  single.segments = segments_from(attended);
  if constexpr (kMass) {
    single.mass = reinterpret_cast<float*>(memory + of.mass);
    row.mass = single.mass;
    row.mass_stride = of.entries + of.others;
    row.to = task.mass + mass_offset(shape_, task, of.query);
    row.to_stride = of.seen;
  } else {
    single.out =
        static_cast<char*>(task.out) + of.query * shape_.n_heads * shape_.head_dim * element_bytes(shape_.type);
  }
  batch_.push_back(single);
  append_row(row, &work.queries);
}

template <typename Task>
int32_t SparseBatches<Task>::add_pages(std::span<const KvSegment> segments) {
  int32_t start = 0, scored = 0, n = 0;
  for (const KvSegment& segment : segments) {
    if (segment.is_indexed()) {
      const auto bytes = [&](int64_t of(KvType, int64_t, int)) {
        return of(shape_.type, shape_.head_dim, segment.row_bits);
      };
      append_row(
          SparsePage{static_cast<const unsigned char*>(segment.v), bytes(indexed_rows_bytes),
                     static_cast<int32_t>(bytes(row_bytes)), segment.row_bits,
                     static_cast<int32_t>(bytes(means_offset)), segment.read < kPageTokens ? scored++ : -1, start},
          &workspace_.pages);
      ++n;
    }
    start += segment.tokens;
  }
  return n;
}

// Appends the gathered pages as segments of a query.
template <typename Task>
void SparseBatches<Task>::add_gathered(const SparsePlan& of, const std::byte* memory) {
  const int64_t stride = kPageTokens * row_bytes(shape_.type, shape_.head_dim, 0);
  for (int64_t page = 0; page < of.pages; ++page) {
    KvSegment& segment = workspace_.segments.emplace_back();
    segment.tokens = static_cast<int32_t>(std::min(kPageTokens, of.entries - page * kPageTokens));
    const std::byte* const at = memory + of.gathered + page * shape_.n_kv_heads * stride;
    segment.k = at;
    segment.v = at + stride / 2;
    segment.head_stride = stride;
    if (page < of.first_bias) continue;
    segment.bias =
        reinterpret_cast<const float*>(memory + of.bias) + (page - of.first_bias) * shape_.n_kv_heads * kPageTokens;
  }
}

template <typename Task>
void SparseBatches<Task>::gather(CUstream_st* stream) {
  SparseWorkspace& work = workspace_;
  if (work.plans.empty()) return;
  const std::vector<std::byte>* const tables[] = {&work.pages, &work.queries, &work.items, &work.runs};
  size_t at[4], bytes = 0;
  for (int i = 0; i < 4; ++i) {
    at[i] = bytes;
    bytes += (tables[i]->size() + 15) / 16 * 16;
  }
  std::byte* const host = work.tables.room(bytes, stream);
  for (int i = 0; i < 4; ++i) std::copy(tables[i]->begin(), tables[i]->end(), host + at[i]);
  const std::byte* const device = work.tables.send(stream);
  pages_ = reinterpret_cast<const SparsePage*>(device + at[0]);
  queries_ = reinterpret_cast<const SparseQuery*>(device + at[1]);
  runs_ = reinterpret_cast<const MassRun*>(device + at[3]);
  const auto kv_heads = static_cast<int>(shape_.n_kv_heads);
  launch(choose_kernel, "sparse attention: choice", static_cast<int64_t>(work.plans.size()) * kv_heads, kChooseThreads,
         choice_bytes(), stream, queries_, pages_, kv_heads,
         promise_parts(static_cast<int>(shape_.n_heads) / kv_heads));
  const auto items = static_cast<int64_t>(rows_of<GatherItem>(work.items).size());
  launch(gather_kernel, "sparse attention: gather", items * kv_heads, kThreads, gather_bytes(shape_.head_dim), stream,
         queries_, pages_, reinterpret_cast<const GatherItem*>(device + at[2]), kv_heads,
         static_cast<int>(shape_.head_dim));
}

template <typename Task>
void SparseBatches<Task>::hand_out(CUstream_st* stream) const
  requires std::is_same_v<Task, AttentionMassTask>
{
  const auto kv_heads = static_cast<int>(shape_.n_kv_heads);
  launch(hand_out_kernel, "attention_mass: results", static_cast<int64_t>(workspace_.plans.size()) * kv_heads, kThreads,
         0, stream, queries_, pages_, runs_, kv_heads);
}

template class SparseBatches<AttentionTask>;
template class SparseBatches<AttentionMassTask>;

}  // namespace smartkv::kernels::cuda
