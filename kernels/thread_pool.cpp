#include "kernels/thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace smartkv {
namespace {

constexpr uint64_t kTaskMask = 0xffffffffu;  // As a task number it means "closed": no region has that many tasks.
constexpr uint64_t kRegion = uint64_t{1} << 32;
constexpr auto kSpin = std::chrono::microseconds(50);

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads < 1 || threads > 64) {
    throw std::invalid_argument("thread pool: expected 1 to 64 threads, found " + std::to_string(threads));
  }
  state_.store(kTaskMask);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_main(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n, Thunk thunk, const void* function) {
  // Close the region first. From here on the exchange of a worker that holds the old word fails.
  const uint64_t region = (state_.load(std::memory_order_relaxed) | kTaskMask) + 1;
  state_.store(region | kTaskMask);
  done_.store(0, std::memory_order_relaxed);
  n_.store(n, std::memory_order_release);
  thunk_.store(thunk, std::memory_order_release);
  function_.store(function, std::memory_order_release);
  state_.store(region + kRegion);
  if (sleepers_.load() > 0) {
    {
      const std::lock_guard lock(mutex_);
    }  // A worker that counted itself now waits, or has seen this region.
    wake_.notify_all();
  }
  take_tasks();
  for (int spins = 0; done_.load(std::memory_order_acquire) != n; ++spins) {
    if (spins < 4096) {
      cpu_relax();
    } else {
      std::this_thread::yield();  // a worker was descheduled in the middle of a task
    }
  }
  if (failed_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::take_tasks() {
  uint64_t word = state_.load(std::memory_order_acquire);
  while (true) {
    const int64_t n = n_.load(std::memory_order_acquire);
    const Thunk thunk = thunk_.load(std::memory_order_acquire);
    const void* function = function_.load(std::memory_order_acquire);
    const auto task = static_cast<int64_t>(word & kTaskMask);
    if (task >= n) break;
    // If the exchange succeeds, no field has changed since `word` was read: fields change only after the word does.
    if (!state_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    try {
      thunk(function, task);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
    }
    done_.fetch_add(1, std::memory_order_acq_rel);
    word = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::wait_for_region(uint64_t seen) {
  const auto changed = [&] {
    const uint64_t word = state_.load();
    return ((word & ~kTaskMask) != seen && (word & kTaskMask) != kTaskMask) || stop_.load();
  };
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (changed()) return;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, changed);
  sleepers_.fetch_sub(1);
}

void ThreadPool::worker_main() {
  uint64_t seen = 0;
  while (true) {
    wait_for_region(seen);
    if (stop_.load()) return;
    seen = state_.load() & ~kTaskMask;
    take_tasks();
  }
}

}  // namespace smartkv
