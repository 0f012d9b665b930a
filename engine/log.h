// The one way to log. Each event is one line on stderr, whatever its text holds: control characters are escaped.
//
//   2026-11-26T12:41:53.123Z info request client=127.0.0.1 status=200
//   {"time":"2026-11-26T12:41:53.123Z","level":"info","message":"request","client":"127.0.0.1","status":"200"}
//
// Every function may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace smartkv {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

void set_log_level(LogLevel level);
void set_log_format(LogFormat format);
bool log_enabled(LogLevel level);

// From now on a thread of its own writes the lines, so that no caller waits for whoever reads them. Lines for which its buffer of
// 256 KiB has no room are lost and counted; a line tells how many once there is room again. The thread lasts as long as the process.
void log_in_background();
// Waits until all lines are written, or the time is over. Returns whether they are.
bool flush_log(std::chrono::milliseconds timeout);
// At its end waits for the log, no longer than a second: a reader may have stopped.
struct LogFlush {
  ~LogFlush() { flush_log(std::chrono::seconds(1)); }
};
// Returns how many lines were lost since the start of the process.
uint64_t lost_log_lines();

struct LogField {
  std::string_view name;   // letters and underscores
  std::string_view value;  // any bytes
};

// Writes a line of at most 8 KiB. Needs no memory, so that a handler of std::bad_alloc can use it.
void log(LogLevel level, std::string_view message) noexcept;
void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) noexcept;
// Writes the parts as one message, of which at most 1,000 bytes are kept.
void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept;

inline void log_debug(std::string_view message) noexcept { log(LogLevel::kDebug, message); }
inline void log_info(std::string_view message) noexcept { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) noexcept { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) noexcept { log(LogLevel::kError, message); }
inline void log_error(std::initializer_list<std::string_view> parts) noexcept { log(LogLevel::kError, parts); }

}  // namespace smartkv
