// The one way to log. Only log.cpp knows spdlog: LibTorch carries its own fmt, and the two do not mix in one file.
#pragma once

#include <initializer_list>
#include <string_view>

namespace smartkv {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
// Writes a line. A line for which there is no memory is lost.
void log(LogLevel level, std::string_view message) noexcept;
// Writes the parts as one line of at most 1,000 bytes. Needs no memory, so that a handler of std::bad_alloc can use it.
void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept;

inline void log_debug(std::string_view message) noexcept { log(LogLevel::kDebug, message); }
inline void log_info(std::string_view message) noexcept { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) noexcept { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) noexcept { log(LogLevel::kError, message); }
inline void log_error(std::initializer_list<std::string_view> parts) noexcept { log(LogLevel::kError, parts); }

}  // namespace smartkv
