// Keeps the first exception of the tasks of a ThreadPool for the caller, where exceptions must not leave the tasks.
#pragma once

#include <exception>
#include <mutex>

namespace smartkv {

class TaskErrors {
 public:
  // Calls function() and keeps what it throws. Thread-safe.
  template <typename Function>
  void run(const Function& function) {
    try {
      function();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (first_ == nullptr) first_ = std::current_exception();
    }
  }
  // Throws the first exception, if there is one. REQUIRES: no task runs any more.
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace smartkv
