// Values as text: Python's str(), repr() and json.dumps().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/text/jinja/value.h"

namespace smartkv::jinja {

// All functions throw RuntimeError if the text would be longer than max_bytes, or if the value has no text.
std::string to_text(const Value& value, int64_t max_bytes);  // str()
std::string to_repr(const Value& value, int64_t max_bytes);  // repr()

struct JsonStyle {
  std::optional<std::string> indent;  // Indentation per level. nullopt writes everything on one line.
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style, int64_t max_bytes);

}  // namespace smartkv::jinja
