// Tells whether accepted requests still get their answers.
#pragma once

#include <chrono>
#include <mutex>

namespace smartkv::http {

// Counts consecutive generations that end in an error of the server. Thread-safe.
class StreamHealth {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMostFailures = 3;
  static constexpr std::chrono::seconds kMemory{60};

  void succeeded() {
    const std::lock_guard lock(mutex_);
    failures_ = 0;
  }
  void failed(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    ++failures_;
    last_ = now;
  }
  // Returns whether at least the last kMostFailures generations all failed, the latest within kMemory. The time limit
  // lets a load balancer try the server again after it has stopped sending requests.
  bool failing(Clock::time_point now = Clock::now()) const {
    const std::lock_guard lock(mutex_);
    return failures_ >= kMostFailures && now - last_ < kMemory;
  }

 private:
  mutable std::mutex mutex_;
  int failures_ = 0;  // since the last success
  Clock::time_point last_;
};

}  // namespace smartkv::http
