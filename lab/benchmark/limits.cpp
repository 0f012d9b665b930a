#include "lab/benchmark/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>

#include "kernels/linear.h"

namespace smartkv {
namespace {

template <typename Function>
double best_seconds(int repetitions, const Function& function) {
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    function();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

constexpr size_t kBytes = size_t{512} << 20;
constexpr size_t kLineWords = 8;

AlignedBuffer filled_buffer() {
  AlignedBuffer buffer(kBytes);
  std::memset(buffer.data(), 1, kBytes);  // untouched pages all map to the same page of zeros
  return buffer;
}

// Adds up the cache lines that a task reads, so that the compiler removes no read.
class LineSum {
 public:
  void add(const uint64_t* line) {
    for (size_t i = 0; i < kLineWords; ++i) sums_[i] += line[i];
  }
  uint64_t value() const { return std::accumulate(std::begin(sums_), std::end(sums_), uint64_t{0}); }

 private:
  uint64_t sums_[kLineWords] = {};
};

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kTasks = 512;
  // Words to prefetch ahead. The hardware prefetcher alone leaves a fifth to a third of the bandwidth unused.
  constexpr size_t kAhead = 512;
  const AlignedBuffer buffer = filled_buffer();
  std::atomic<uint64_t> sink{0};
  const double seconds = best_seconds(5, [&] {
    pool.parallel_for(kTasks, [&](int64_t task) {
      const uint64_t* words = buffer.as<uint64_t>() + task * static_cast<int64_t>(kBytes / 8 / kTasks);
      LineSum sum;
      for (size_t i = 0; i < kBytes / 8 / kTasks; i += kLineWords) {
        __builtin_prefetch(words + i + kAhead);
        sum.add(words + i);
      }
      sink.fetch_add(sum.value(), std::memory_order_relaxed);
    });
  });
  return static_cast<double>(kBytes) / seconds / 1e9;
}

// Returns the bandwidth, in GB/s, of reading a random quarter of all 256-byte rows in ascending order, as sparse
// attention does. Each row is prefetched 16 rows ahead.
double row_bandwidth(ThreadPool& pool) {
  constexpr size_t kRowWords = 32, kAhead = 16;
  constexpr int64_t kTasks = 64;
  const AlignedBuffer buffer = filled_buffer();
  std::mt19937 random(1);
  std::vector<const uint64_t*> rows;
  for (size_t row = 0; row < kBytes / 8 / kRowWords; ++row) {
    if (random() % 4 == 0) rows.push_back(buffer.as<uint64_t>() + row * kRowWords);
  }
  const size_t per_task = rows.size() / kTasks;
  std::atomic<uint64_t> sink{0};
  const double seconds = best_seconds(5, [&] {
    pool.parallel_for(kTasks, [&](int64_t task) {
      const size_t first = static_cast<size_t>(task) * per_task;
      LineSum sum;
      for (size_t i = first; i < first + per_task; ++i) {
        const uint64_t* const next = rows[std::min(i + kAhead, rows.size() - 1)];
        for (size_t line = 0; line < kRowWords; line += kLineWords) {
          __builtin_prefetch(next + line);
          sum.add(rows[i] + line);
        }
      }
      sink.fetch_add(sum.value(), std::memory_order_relaxed);
    });
  });
  return static_cast<double>(per_task * kTasks * kRowWords * 8) / seconds / 1e9;
}

// Returns the rate of products with weights of a type, in 1e9 operations/s.
double product_rate(ThreadPool& pool, kernels::WeightType type) {
  constexpr int64_t kRows = 512, kOut = 3072, kIn = 576;
  const kernels::PackedMatrix matrix = kernels::make_packed(type, kOut, kIn);
  AlignedBuffer x(kRows * kIn * 2), y(kRows * kOut * 4);
  kernels::LinearScratch scratch;
  const double seconds = best_seconds(20, [&] {
    kernels::linear(pool, matrix, {x.data(), kRows, kIn}, {y.data(), kOut, kernels::Epilogue::kStore, nullptr},
                    scratch);
  });
  return 2.0 * kRows * kOut * kIn / seconds / 1e9;
}

}  // namespace

MachineLimits measure_limits(ThreadPool& pool) {
  return {read_bandwidth(pool), row_bandwidth(pool), product_rate(pool, kernels::WeightType::kBf16),
          product_rate(pool, kernels::WeightType::kInt8)};
}

}  // namespace smartkv
