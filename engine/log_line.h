// An event of the log as text, behind its time and level. Allocates no memory.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

#include "engine/log.h"

namespace smartkv {

class LogLine {
 public:
  static constexpr size_t kMostBytes = 8 << 10;

  LogLine(LogFormat format, std::string_view message, std::initializer_list<LogField> fields);

  // Returns "MESSAGE FIELD=VALUE" or, in JSON, the rest of an object from `"message":` on, with a line break: UTF-8 without control
  // characters, at most kMostBytes. A message keeps 4 KiB and a value 1 KiB; "..." shows the cut.
  std::string_view text() const { return {data_.data(), size_}; }

 private:
  bool has_room(const LogField& field) const;
  void put(std::string_view bytes);  // as they are
  void put_escaped(std::string_view bytes, bool quoted, size_t longest);  // `longest`: bytes of what is put
  void put_value(std::string_view value);  // of a field in text

  std::array<char, kMostBytes> data_;
  size_t size_ = 0;
};

}  // namespace smartkv
