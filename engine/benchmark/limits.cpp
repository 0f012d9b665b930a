#include "engine/benchmark/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

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

double read_bandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{512} << 20;
  constexpr int64_t kTasks = 512;
  constexpr size_t kAhead = 512;  // words: prefetching hardware alone leaves a fifth to a third of the rate unused
  AlignedBuffer buffer(kBytes);
  std::memset(buffer.data(), 1, kBytes);  // fresh pages would all be one page of zeros
  std::atomic<uint64_t> sink{0};
  const double seconds = best_seconds(5, [&] {
    pool.parallel_for(kTasks, [&](int64_t task) {
      const uint64_t* words = buffer.as<uint64_t>() + task * static_cast<int64_t>(kBytes / 8 / kTasks);
      uint64_t sums[8] = {};
      for (size_t i = 0; i < kBytes / 8 / kTasks; i += 8) {
        __builtin_prefetch(words + i + kAhead);
        for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
      }
      uint64_t sum = 0;
      for (const uint64_t s : sums) sum += s;
      sink.fetch_add(sum, std::memory_order_relaxed);
    });
  });
  return static_cast<double>(kBytes) / seconds / 1e9;
}

double bf16_rate(ThreadPool& pool) {
  constexpr int64_t kRows = 512, kOut = 3072, kIn = 576;
  const kernels::PackedMatrix matrix = kernels::make_packed(kernels::WeightType::kBf16, kOut, kIn);
  AlignedBuffer x(kRows * kIn * 2), y(kRows * kOut * 4);
  kernels::LinearScratch scratch;
  const double seconds = best_seconds(20, [&] {
    kernels::linear(pool, matrix, {x.data(), kRows, kIn}, {y.data(), kOut, kernels::Epilogue::kStore, nullptr}, scratch);
  });
  return 2.0 * kRows * kOut * kIn / seconds / 1e9;
}

}  // namespace

MachineLimits measure_limits(ThreadPool& pool) { return {read_bandwidth(pool), bf16_rate(pool)}; }

}  // namespace smartkv
