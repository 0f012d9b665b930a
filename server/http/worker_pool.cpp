#include "server/http/worker_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <exception>

#include "engine/log.h"

namespace smartkv::http {

void WorkerPool::enqueue(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() > idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::exception& error) {  // std::system_error or std::bad_alloc
      // An existing thread will run the task later. If there is none, the task cannot run.
      if (threads_.empty()) {
        tasks_.pop_back();
        throw;
      }
      log(LogLevel::kWarning, {"cannot start another HTTP thread: ", error.what()});
    }
  }
  ready_.notify_one();
}

void WorkerPool::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    shutdown_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::work() {
  // Lets the model's threads go first if cores are scarce. On Linux each thread has its own niceness. Failure is
  // harmless.
  constexpr int kNiceness = 5;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    ready_.wait(lock, [this] { return shutdown_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace smartkv::http
