// A pool for short parallel regions: a decode step has about 150 of a few microseconds each.
//
// The calling thread takes part. Workers spin for a few microseconds after a region, then sleep: an idle pool uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace smartkv {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(i) for i in [0, n), spread dynamically; returns when all are done. Not reentrant, one caller at a
  // time. `function` must not throw. Allocates nothing.
  template <typename Function>
  void parallel_for(int64_t n, const Function& function) {
    if (n <= 0) return;
    if (n == 1 || workers_.empty()) {
      for (int64_t i = 0; i < n; ++i) function(i);
      return;
    }
    run(n, [](const void* f, int64_t i) { (*static_cast<const Function*>(f))(i); }, &function);
  }

 private:
  using Thunk = void (*)(const void*, int64_t);
  void run(int64_t n, Thunk thunk, const void* function);
  void work();        // takes tasks of the current region until none is left
  void worker_main();

  struct alignas(64) Shared {
    std::atomic<uint64_t> generation{0};  // of the region; odd while closed for joining
    std::atomic<int64_t> next{0};
    std::atomic<int32_t> active{0};
    std::atomic<bool> stop{false};
  };
  Shared shared_;
  Thunk thunk_ = nullptr;
  const void* function_ = nullptr;
  int64_t n_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace smartkv
