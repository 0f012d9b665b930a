// What tasks of a ThreadPool throw, which must not leave them: the first of it, for the caller.
#pragma once

#include <exception>
#include <mutex>

namespace smartkv {

class TaskErrors {
 public:
  template <typename Function>
  void run(const Function& function) {
    try {
      function();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (first_ == nullptr) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace smartkv
