#include "engine/log.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>

#include "engine/log_line.h"

namespace smartkv {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

std::atomic<LogFormat> log_format = LogFormat::kText;

// Writes all bytes to stderr, waiting if it is full. Gives up on an error, such as a closed stderr, since there is
// nowhere to report it.
void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {  // a process that shares stderr made it non-blocking
      pollfd fd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&fd, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return;
    }
  }
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

// Writes the lines to stderr. It is never destroyed, because its thread may be blocked in a write when the process
// ends.
class Sink final : public spdlog::sinks::sink {
 public:
  // REQUIRES: the payload is a LogLine's text. Allocates no memory: the time and the level fit into the part of
  // spdlog's buffer that is on the stack.
  void log(const spdlog::details::log_msg& event) override {
    std::unique_lock lock(mutex_);
    if (!background_) {
      write_all({line_.data(), make_line(event)});
    } else if (!add(event)) {
      ++lost_;
    } else {
      lock.unlock();
      work_.notify_one();
    }
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  void go_to_background() {
    const std::lock_guard lock(mutex_);
    if (background_) return;
    filling_.reserve(kBufferBytes);
    writing_.reserve(kBufferBytes);
    sigset_t all, before;  // the thread takes no signals; if the reader is gone, write() fails
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { run(); }).detach();
      background_ = true;
    } catch (const std::exception&) {  // no thread, or no memory for one: callers continue to write
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool wait_until_written(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return written_.wait_for(lock, timeout, [this] { return filling_.empty() && writing_.empty(); });
  }

  uint64_t lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return !filling_.empty(); });
      filling_.swap(writing_);
      lock.unlock();
      write_all(writing_);
      lock.lock();
      writing_.clear();
      if (lost_ > told_) tell_lost();
      if (filling_.empty()) written_.notify_all();
    }
  }

  // Adds a line that says how many lines were lost. It comes after the buffered lines, as the lost ones would have.
  void tell_lost() {
    std::array<char, 80> message{};
    std::snprintf(message.data(), message.size(), "%llu log lines were lost because they were not read in time",
                  static_cast<unsigned long long>(lost_ - told_));
    const LogLine line(log_format, message.data(), {});
    if (add({"", spdlog::level::warn, line.text()})) told_ = lost_;  // otherwise tried again after the next write
  }

  bool add(const spdlog::details::log_msg& event) {
    const std::string_view line(line_.data(), make_line(event));
    if (filling_.size() + line.size() > kBufferBytes) return false;
    filling_ += line;
    return true;
  }

  // Writes time, level and payload into line_. Returns the number of bytes.
  size_t make_line(const spdlog::details::log_msg& event) {
    spdlog::memory_buf_t head;
    (log_format == LogFormat::kJson ? json_head_ : text_head_).format(event, head);
    const size_t size = std::string_view(head.data(), head.size()).copy(line_.data(), line_.size());
    return size +
           std::string_view(event.payload.data(), event.payload.size()).copy(line_.data() + size, line_.size() - size);
  }

  std::mutex mutex_;  // guards all members below
  spdlog::pattern_formatter text_head_{"%Y-%m-%dT%H:%M:%S.%eZ %l ", spdlog::pattern_time_type::utc, ""};
  spdlog::pattern_formatter json_head_{R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",)",
                                       spdlog::pattern_time_type::utc, ""};
  std::array<char, LogLine::kMostBytes + 128> line_;
  std::condition_variable work_, written_;
  // Callers append to filling_ while the thread writes writing_; then both are swapped. Each has room for kBufferBytes.
  std::string filling_, writing_;
  bool background_ = false;
  uint64_t lost_ = 0, told_ = 0;  // lost lines, and how many of these a line in the log has mentioned
};

Sink& sink() {
  static Sink* const instance = new Sink;
  return *instance;
}

spdlog::logger& logger() {
  static spdlog::logger* const instance = new spdlog::logger("", std::shared_ptr<Sink>(&sink(), [](Sink*) {}));
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
void set_log_format(LogFormat format) { log_format = format; }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }
void log_in_background() { sink().go_to_background(); }
bool flush_log(std::chrono::milliseconds timeout) { return sink().wait_until_written(timeout); }
uint64_t lost_log_lines() { return sink().lost(); }

void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) noexcept {
  try {
    if (log_enabled(level)) logger().log(to_spdlog(level), LogLine(log_format, message, fields).text());
  } catch (...) {  // a lock failed, or there was no memory for the sink itself
  }
}

void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept {
  std::array<char, 1000> message;
  size_t length = 0;
  for (const std::string_view part : parts) length += part.copy(message.data() + length, message.size() - length);
  log(level, std::string_view(message.data(), length));
}

}  // namespace smartkv
