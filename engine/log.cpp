#include "engine/log.h"

#include <array>
#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace smartkv {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = spdlog::stderr_color_mt("smartkv");
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::info);
    return created;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log(LogLevel level, std::string_view message) noexcept {
  try {
    logger().log(to_spdlog(level), message);
  } catch (...) {  // nowhere is left to tell it
  }
}

void log(LogLevel level, std::initializer_list<std::string_view> parts) noexcept {
  std::array<char, 1000> line;
  size_t length = 0;
  for (const std::string_view part : parts) length += part.copy(line.data() + length, line.size() - length);
  log(level, std::string_view(line.data(), length));
}

}  // namespace smartkv
