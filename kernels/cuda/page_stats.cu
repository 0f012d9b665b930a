#include "kernels/cuda/page_stats.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/page_values.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"

namespace smartkv::kernels::cuda {
namespace {

// The statistics of one KV head of a dense page. Each result may be null.
struct StatsRow {
  const unsigned char* k;
  const unsigned char* v;
  int32_t first, n;
  float* k_range;
  float* v_range;
  double* k_squares;
  double* v_squares;
};

struct Extent {
  float low = INFINITY, high = -INFINITY;
  double squares = 0;

  __device__ void add(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    squares += x * x;  // The product is exact.
  }
  __device__ void gather() {
    low = -max_of_warp(-low);
    high = max_of_warp(high);
    squares = sum_of_warp(squares);
  }
};

// A warp takes a pair of channels of K at a time, then a pair of tokens of V.
__global__ void __launch_bounds__(kThreads) stats_kernel(const StatsRow* jobs, int head_dim) {
  const StatsRow& job = jobs[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto has = [&](int slot) { return slot >= job.first && slot < job.first + job.n; };
  for (int pair = warp; pair < head_dim / 2; pair += kWarps) {
    Extent of[2];
    for (int slot = lane; slot < kPage; slot += 32) {
      if (!has(slot)) continue;
      const uint32_t x = words(job.k)[pair * kPage + slot];
      of[0].add(low_bf16(x));
      of[1].add(high_bf16(x));
    }
    for (int j = 0; j < 2; ++j) {
      of[j].gather();
      if (lane != 0) continue;
      if (job.k_range != nullptr) job.k_range[2 * pair + j] = of[j].high - of[j].low;
      if (job.k_squares != nullptr) job.k_squares[2 * pair + j] = of[j].squares;
    }
  }
  double squares = 0;
  for (int pair = warp; pair < kPage / 2; pair += kWarps) {
    Extent of[2];
    for (int d = lane; d < head_dim; d += 32) {
      const uint32_t x = words(job.v)[pair * head_dim + d];
      of[0].add(low_bf16(x));
      of[1].add(high_bf16(x));
    }
    for (int j = 0; j < 2; ++j) {
      of[j].gather();
      const int slot = 2 * pair + j;
      if (!has(slot)) continue;
      squares += of[j].squares;
      if (lane == 0 && job.v_range != nullptr) job.v_range[slot - job.first] = of[j].high - of[j].low;
    }
  }
  auto* const sums = reinterpret_cast<double*>(shared_memory());
  if (lane == 0) sums[warp] = squares;
  __syncthreads();
  if (threadIdx.x != 0 || job.v_squares == nullptr) return;
  double sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += sums[i];
  *job.v_squares = sum;
}

// The products of one KV head. All pointers are those of this head.
struct Product {
  Segment page, residual;
  int32_t residual_columns, first, n, n_queries;
  const float* q;
  float* out;
  int64_t out_stride;
};

// Shared memory: keys, f32 [n, head_dim + 1].
__global__ void __launch_bounds__(kThreads) products_kernel(const Product* jobs, int head_dim) {
  const Product& job = jobs[blockIdx.x];
  auto* const keys = reinterpret_cast<float*>(shared_memory());
  const auto thread = static_cast<int>(threadIdx.x), row_floats = head_dim + 1;
  const bool coded = job.page.k_codes != 0;
  const auto load = [&](const Segment& page, int columns) {
    for (int i = thread; i < columns * job.n; i += kThreads) {
      const int t = i % job.n, column = i / job.n, slot = job.first + t;
      const int channel = page.channel_order == nullptr ? column : page.channel_order[column];
      keys[t * row_floats + channel] =
          coded ? decoded(page, page.k, true, column, slot, kPage)
                : low_bf16(reinterpret_cast<const uint16_t*>(page.k)[k_place(channel, slot)]);
    }
    __syncthreads();
  };
  load(job.page, head_dim);
  if (job.residual_columns > 0) load(job.residual, job.residual_columns);
  for (int i = thread; i < job.n * job.n_queries; i += kThreads) {
    const int t = i % job.n, query = i / job.n;
    const float *const q = job.q + query * head_dim, *const key = keys + t * row_floats;
    float sum = 0.0f;
    for (int d = 0; d < head_dim; ++d) sum = fmaf(q[d], key[d], sum);
    job.out[query * job.out_stride + t] = sum;
  }
}

}  // namespace

void ReadJobs::read(int64_t head_dim, std::span<const PageRead> pages, Staging& staging, ResultSpace& results) {
  CallStaging call(staging);
  for (const PageRead& page : pages) {
    const auto heads = static_cast<size_t>(page.n_heads);
    const size_t stride = static_cast<size_t>(page.head_stride) * sizeof(float);
    const auto order_bytes = static_cast<size_t>((page.head + page.n_heads) * head_dim);
    const size_t bytes = static_cast<size_t>(page.n * head_dim) * sizeof(float);  // Of one head.
    reads_.push_back({page, call.add(page.page.channel_order, order_bytes), results.add(page.k, bytes, heads, stride),
                      results.add(page.v, bytes, heads, stride)});
  }
}

void ReadJobs::page_stats(int64_t head_dim, std::span<const PageStats> pages, ResultSpace& results) {
  for (const PageStats& page : pages) {
    const auto heads = static_cast<size_t>(page.n_heads), channels = heads * static_cast<size_t>(head_dim);
    const size_t k_range = results.add(page.k_range, channels * sizeof(float));
    const size_t v_range = results.add(page.v_range, heads * static_cast<size_t>(page.n) * sizeof(float));
    stats_.push_back({page, k_range, v_range, results.add(page.k_squares, channels * sizeof(double)),
                      results.add(page.v_squares, heads * sizeof(double))});
  }
}

void ReadJobs::multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, Staging& staging,
                             ResultSpace& results) {
  CallStaging call(staging);
  const auto row = static_cast<size_t>(head_dim);
  for (const KeyProducts& job : products) {
    const auto queries = static_cast<size_t>(job.n_queries), order_bytes = static_cast<size_t>(job.head + 1) * row;
    const KvSegment residual = job.residual == nullptr ? KvSegment{} : *job.residual;
    products_.push_back({job, residual, call.add(job.page.channel_order, order_bytes),
                         call.add(residual.channel_order, order_bytes), call.add(job.q, queries * row * sizeof(float)),
                         results.add(job.out, static_cast<size_t>(job.n) * sizeof(float), queries,
                                     static_cast<size_t>(job.out_stride) * sizeof(float))});
  }
}

void ReadJobs::clear() {
  reads_.clear();
  stats_.clear();
  products_.clear();
}

void ReadJobs::run(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) {
  if (!reads_.empty()) run_reads(head_dim, memory, workspace, stream);
  if (!stats_.empty()) run_stats(head_dim, memory, workspace, stream);
  if (!products_.empty()) run_products(head_dim, memory, workspace, stream);
}

void ReadJobs::run_reads(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) {
  placed_.clear();
  for (const QueuedRead& from : reads_) {
    PageRead& read = placed_.emplace_back(from.job);
    read.page.channel_order = memory.input<uint8_t>(from.order);
    read.k = memory.output<float>(from.k);
    read.v = memory.output<float>(from.v);
    read.head_stride = read.n * head_dim;
  }
  read_pages(head_dim, placed_, workspace, stream);
}

void ReadJobs::run_stats(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) {
  workspace.rows.clear();
  for (const QueuedStats& from : stats_) {
    const PageStats& page = from.job;
    check_dense(page.n_heads, head_dim, page.page);
    check_tokens(page.first, page.n);
    for (int64_t head = 0; head < page.n_heads; ++head) {
      const auto of = [&](auto* results, int64_t each) { return results == nullptr ? nullptr : results + head * each; };
      const int64_t offset = head * page.page.head_stride;
      append_row(
          StatsRow{static_cast<const unsigned char*>(page.page.k) + offset,
                   static_cast<const unsigned char*>(page.page.v) + offset, static_cast<int32_t>(page.first),
                   static_cast<int32_t>(page.n), of(memory.output<float>(from.k_range), head_dim),
                   of(memory.output<float>(from.v_range), page.n), of(memory.output<double>(from.k_squares), head_dim),
                   of(memory.output<double>(from.v_squares), 1)},
          &workspace.rows);
    }
  }
  const auto rows = rows_of<StatsRow>(workspace.rows);
  launch(stats_kernel, "page_stats", static_cast<int64_t>(rows.size()), kThreads, kWarps * sizeof(double), stream,
         workspace.jobs.send(rows, stream), static_cast<int>(head_dim));
}

void ReadJobs::run_products(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) {
  workspace.rows.clear();
  for (const QueuedProducts& queued : products_) {
    const KeyProducts& from = queued.job;
    check_tokens(from.first, from.n);
    if (from.n == 0 || from.n_queries == 0) continue;
    Product row = {};
    row.page = head_row(head_dim, from.page, from.head, memory.input<uint8_t>(queued.order));
    if (from.residual != nullptr) {
      row.residual = head_row(head_dim, queued.residual, from.head, memory.input<uint8_t>(queued.residual_order));
      row.residual_columns = static_cast<int32_t>(from.residual_columns);
    }
    row.first = static_cast<int32_t>(from.first);
    row.n = static_cast<int32_t>(from.n);
    row.n_queries = static_cast<int32_t>(from.n_queries);
    row.q = memory.input<float>(queued.q);
    row.out = memory.output<float>(queued.out);
    row.out_stride = from.n;
    append_row(row, &workspace.rows);
  }
  const auto rows = rows_of<Product>(workspace.rows);
  launch(products_kernel, "multiply_keys", static_cast<int64_t>(rows.size()), kThreads,
         static_cast<size_t>(kPageTokens * (head_dim + 1)) * sizeof(float), stream, workspace.jobs.send(rows, stream),
         static_cast<int>(head_dim));
}

}  // namespace smartkv::kernels::cuda
