// A pool for short parallel regions: a decode step has about 150 of them, of a few microseconds each.
//
// The calling thread takes part. Workers spin for about 50 microseconds after a region and then sleep, so that an idle
// pool uses no CPU. Tasks are taken one by one, and the caller waits only for tasks that were taken. So a worker that
// the operating system holds back delays no region.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace smartkv {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // Throws std::invalid_argument unless `threads` is 1 to 64, the caller included.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(i) for i in [0, n), distributed dynamically, and returns when all calls are done. Allocates nothing.
  // If calls throw, throws the first exception after all calls have ended. REQUIRES: n < 2^31; one caller at a time,
  // and not from inside a task.
  template <typename Function>
  void parallel_for(int64_t n, const Function& function) {
    if (n <= 0) return;
    if (n == 1 || workers_.empty()) {
      for (int64_t i = 0; i < n; ++i) function(i);
      return;
    }
    run(
        n, [](const void* f, int64_t i) { (*static_cast<const Function*>(f))(i); }, &function);
  }

 private:
  using Thunk = void (*)(const void*, int64_t);
  void run(int64_t n, Thunk thunk, const void* function);
  void take_tasks();  // Runs tasks of the current region until none is left.
  void worker_main();
  void wait_for_region(uint64_t seen);  // Returns when a region other than `seen` opens, or on stop.

  // The upper half is the number of the region, the lower half its next task. A task is taken by exchanging the whole
  // word. So a late worker can never take a task of a region before it has read that region's fields below.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> n_{0};
  std::atomic<Thunk> thunk_{nullptr};
  std::atomic<const void*> function_{nullptr};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace smartkv
