// The threads that serve requests. They are started when needed, up to a limit, and kept until shutdown. A stream holds
// its thread as long as it runs, so the limit is high; a server that was never busy has few threads.
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

  // Hands the task to a thread. REQUIRES: the task does not throw. Throws, and drops the task, if there is no thread
  // and none can be started, or if memory runs out.
  void enqueue(std::function<void()> task);
  void shutdown();  // returns when all tasks have been run and all threads have ended

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
