#include "engine/log.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>

#include "engine/log_line.h"

namespace smartkv {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

std::atomic<LogLevel> least_level = LogLevel::kInfo;
std::atomic<LogFormat> log_format = LogFormat::kText;

// Gives up where stderr is closed: nowhere is left to tell it.
void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {  // whoever shares stderr made it so
      pollfd fd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&fd, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return;
    }
  }
}

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "info";
}

LogLine make_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 64> time{};
  const size_t length = std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(time.data() + length, time.size() - length, ".%03dZ", static_cast<int>(milliseconds));
  return LogLine(log_format, time.data(), name_of(level), message, fields);
}

// Where lines go. It is never destroyed, because its thread may be blocked in a write when the process ends.
class Sink {
 public:
  void write(std::string_view line) {
    std::unique_lock lock(mutex_);
    if (!background_) return write_all(line);
    if (filling_.size() + line.size() > kBufferBytes) {
      ++lost_;
      return;
    }
    filling_ += line;
    lock.unlock();
    work_.notify_one();
  }

  void go_to_background() {
    const std::lock_guard lock(mutex_);
    if (background_) return;
    filling_.reserve(kBufferBytes);
    writing_.reserve(kBufferBytes);
    sigset_t all, before;  // signals are for other threads; a reader that is gone is an error of write()
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { run(); }).detach();
      background_ = true;
    } catch (const std::system_error&) {  // callers go on to write
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool flush(std::chrono::milliseconds timeout) {
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

  // Behind the lines that did find room: those that were lost came after them.
  void tell_lost() {
    std::array<char, 80> message{};
    std::snprintf(message.data(), message.size(), "%llu log lines were lost, because nobody read them in time",
                  static_cast<unsigned long long>(lost_ - told_));
    const LogLine line = make_line(LogLevel::kWarning, message.data(), {});
    if (filling_.size() + line.text().size() > kBufferBytes) return;  // after the next write
    filling_ += line.text();
    told_ = lost_;
  }

  std::mutex mutex_;
  std::condition_variable work_, written_;
  std::string filling_, writing_;  // by callers; by the thread. kBufferBytes each
  bool background_ = false;
  uint64_t lost_ = 0, told_ = 0;
};

Sink& sink() {
  static Sink* const instance = new Sink;
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { least_level = level; }
void set_log_format(LogFormat format) { log_format = format; }
bool log_enabled(LogLevel level) { return level >= least_level; }
void log_in_background() { sink().go_to_background(); }
bool flush_log(std::chrono::milliseconds timeout) { return sink().flush(timeout); }
uint64_t lost_log_lines() { return sink().lost(); }

void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) noexcept {
  if (!log_enabled(level)) return;
  try {
    sink().write(make_line(level, message, fields).text());
  } catch (...) {  // of a lock, or for the sink itself
  }
}

void log(LogLevel level, std::string_view message) noexcept { log(level, message, std::initializer_list<LogField>{}); }

void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept {
  std::array<char, 1000> message;
  size_t length = 0;
  for (const std::string_view part : parts) length += part.copy(message.data() + length, message.size() - length);
  log(level, std::string_view(message.data(), length));
}

}  // namespace smartkv
