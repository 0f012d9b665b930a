// Helpers of the reports that write tables, HTML and SVG.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace smartkv {

// Returns `text` escaped for use inside an element or a quoted attribute.
inline std::string escaped_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// Formats numbers like printf. The result is cut after 255 characters.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace smartkv
