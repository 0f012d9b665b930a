#include "engine/log_line.h"

#include <algorithm>
#include <cstdio>

namespace smartkv {
namespace {

constexpr std::string_view kCut = "...";
// Limits in bytes, after escaping. They leave room for fields after a long message.
constexpr size_t kLongestMessage = 4 << 10, kLongestValue = 1 << 10;
constexpr size_t kTail = 8;  // bytes kept free for the closing quote, brace and line break

// Returns the length in bytes of the UTF-8 character that `text` begins with, and sets `code` to its code point.
// Returns 0 if the text begins with no valid character.
size_t read_character(std::string_view text, uint32_t* code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  const size_t size = first < 0x80 ? 1 : (first >> 5) == 6 ? 2 : (first >> 4) == 14 ? 3 : (first >> 3) == 30 ? 4 : 0;
  if (size == 0 || size > text.size()) return 0;
  *code = size == 1 ? first : first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) >> 6) != 2) return 0;
    *code = *code << 6 | (byte(i) & 0x3f);
  }
  static constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *code >= 0xd800 && *code < 0xe000;
  return *code < kLeast[size] || *code > 0x10ffff || surrogate ? 0 : size;
}

// Returns true for control characters of ASCII and Latin-1, Unicode's line and paragraph separators, and characters
// that change the direction of the text.
bool is_control(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x061c || within(0x200e, 0x200f) || within(0x2028, 0x202e) ||
         within(0x2066, 0x2069);
}

}  // namespace

LogLine::LogLine(LogFormat format, std::string_view message, std::initializer_list<LogField> fields) {
  const bool json = format == LogFormat::kJson;
  if (json) put("\"message\":\"");
  put_escaped(message, json, kLongestMessage);
  if (json) put("\"");
  for (const LogField& field : fields) {
    if (!has_room(field)) break;
    put(json ? ",\"" : " ");
    put(field.name);
    put(json ? "\":" : "=");
    put_value(field.value, json);
  }
  if (json) put("}");
  data_[size_++] = '\n';
}

bool LogLine::has_room(const LogField& field) const {
  return size_ + field.name.size() + kLongestValue + 2 * kTail < data_.size();
}

void LogLine::put(std::string_view bytes) { size_ += bytes.copy(data_.data() + size_, data_.size() - size_ - 1); }

void LogLine::put_escaped(std::string_view bytes, bool quoted, size_t longest) {
  const size_t end = std::min(size_ + longest, data_.size() - kTail) - kCut.size();
  while (!bytes.empty()) {
    uint32_t code = 0;
    const size_t size = read_character(bytes, &code);
    std::array<char, 8> escape{};
    std::string_view shown = bytes.substr(0, std::max<size_t>(size, 1));
    if (size == 0) {
      shown = "\ufffd";
    } else if (code == '\n') {
      shown = "\\n";
    } else if (code == '\r') {
      shown = "\\r";
    } else if (code == '\t') {
      shown = "\\t";
    } else if (is_control(code)) {
      std::snprintf(escape.data(), escape.size(), "\\u%04x", code);
      shown = escape.data();
    } else if (quoted && (code == '"' || code == '\\')) {
      escape = {'\\', static_cast<char>(code)};
      shown = {escape.data(), 2};
    }
    if (size_ + shown.size() > end) return put(kCut);
    put(shown);
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
}

void LogLine::put_value(std::string_view value, bool json) {
  const bool plain = !json && !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
  });
  if (!plain) put("\"");
  put_escaped(value, true, kLongestValue);
  if (!plain) put("\"");
}

}  // namespace smartkv
