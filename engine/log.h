// The project's only logger. Each event is one line on stderr; control characters in its text are escaped.
//
//   2026-11-26T12:41:53.123Z info request client=127.0.0.1 status=200
//   {"time":"2026-11-26T12:41:53.123Z","level":"info","message":"request","client":"127.0.0.1","status":"200"}
//
// Every function may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace smartkv {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// Drops events below `level` from now on.
void set_log_level(LogLevel level);
void set_log_format(LogFormat format);
// Returns whether an event of this level would be written.
bool log_enabled(LogLevel level);

// Starts a background thread that writes all lines from now on, so that a slow reader of stderr blocks no caller.
//  - If a line does not fit into the thread's buffer of 256 KiB, it is lost and counted. Once there is room again, a
//    line says how many were lost.
//  - The thread lives as long as the process. If it cannot be started, callers continue to write themselves.
void log_in_background();
// Waits until all lines are written or the timeout has passed. Returns whether all are written.
bool flush_log(std::chrono::milliseconds timeout);
// Waits in its destructor until the log is written. It waits for at most a second, because stderr's reader may have
// stopped.
struct LogFlush {
  ~LogFlush() { flush_log(std::chrono::seconds(1)); }
};
// Returns how many lines were lost since the process started.
uint64_t lost_log_lines();

struct LogField {
  std::string_view name;   // letters and underscores
  std::string_view value;  // any bytes
};

// Writes a line of at most 8 KiB. Allocates no memory, so that a handler of std::bad_alloc can use it.
void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) noexcept;
// Writes the parts as one message, which is cut after 1,000 bytes.
void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept;

// How lines name a size.
inline std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

inline void log_info(std::string_view message) noexcept { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) noexcept { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) noexcept { log(LogLevel::kError, message); }
inline void log_error(std::initializer_list<std::string_view> parts) noexcept { log(LogLevel::kError, parts); }

}  // namespace smartkv
