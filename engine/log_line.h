// One event of the log as text. Allocates no memory.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

#include "engine/log.h"

namespace smartkv {

class LogLine {
 public:
  // `time` and `level` hold no character that needs an escape.
  LogLine(LogFormat format, std::string_view time, std::string_view level, std::string_view message,
          std::initializer_list<LogField> fields);

  // Returns the line with its line break: UTF-8 without control characters, at most 8 KiB. Of a message 4 KiB are kept and of a
  // value 1 KiB; "..." shows the cut.
  std::string_view text() const { return {data_.data(), size_}; }

 private:
  bool has_room(const LogField& field) const;
  void put(std::string_view bytes);  // as they are
  void put_escaped(std::string_view bytes, bool quoted, size_t longest);  // `longest`: bytes of what is put
  void put_value(std::string_view value);  // of a field in text

  std::array<char, 8 << 10> data_;
  size_t size_ = 0;
};

}  // namespace smartkv
