// Formats an event of the log: the part of its line that follows time and level. Allocates no memory.
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

  // Returns "MESSAGE FIELD=VALUE" or, in JSON, the rest of an object from `"message":` on. It is UTF-8 without control
  // characters, ends with a line break and has at most kMostBytes. A message is cut at 4 KiB and a value at 1 KiB;
  // "..." shows the cut. Fields that do not fit are left out. Valid as long as this object.
  std::string_view text() const { return {data_.data(), size_}; }

 private:
  bool has_room(const LogField& field) const;
  void put(std::string_view bytes);  // appends the bytes unchanged
  // Appends the bytes, escaped, as valid UTF-8. `quoted` also escapes quotes and backslashes. Appends at most `longest`
  // bytes.
  void put_escaped(std::string_view bytes, bool quoted, size_t longest);
  // Appends a field's value. It is in quotes in JSON, and in the text format if it needs them.
  void put_value(std::string_view value, bool json);

  std::array<char, kMostBytes> data_;
  size_t size_ = 0;
};

}  // namespace smartkv
