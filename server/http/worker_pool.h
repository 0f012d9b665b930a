// Threads that serve requests: started when needed, up to a limit, kept until shutdown. A stream holds its thread as
// long as it runs, so the limit is high and an idle server is small.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace smartkv::http {

class WorkerPool {
 public:
  explicit WorkerPool(size_t max_threads) : max_threads_(max_threads) {}

  // Hands the task to a thread, which must not see it throw. Throws, and forgets the task, when no thread can take it or
  // memory runs out.
  void enqueue(std::function<void()> task);
  void shutdown();                           // finishes what was enqueued

 private:
  void work();

  size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool shutdown_ = false;
};

}  // namespace smartkv::http
