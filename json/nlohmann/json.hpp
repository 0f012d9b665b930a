// nlohmann's JSON, whose values need no memory to be destroyed or compared. This folder precedes the library's on the
// include path.
//
// The library's destructor moves nested values into a vector before it frees them, so that deep nesting cannot exhaust
// the stack. It is noexcept: if the vector cannot be allocated, the program ends. json/json.cpp therefore specialises
// json_value::destroy() for the two kinds of values in use.
//
// The library compares a value with a text by making a value of the text, also noexcept. The operators below take
// precedence, because they are not templates. tests/server/out_of_memory_test.cpp would fail if the library's own were
// called.
#pragma once

#pragma GCC system_header  // #include_next is an extension

#include_next <nlohmann/json.hpp>

template <>
void nlohmann::json::json_value::destroy(nlohmann::detail::value_t type);
template <>
void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type);

namespace nlohmann {

inline bool operator==(const json& value, const char* text) noexcept {
  const auto* held = value.get_ptr<const json::string_t*>();
  return held != nullptr && *held == text;
}
inline bool operator!=(const json& value, const char* text) noexcept { return !(value == text); }
inline bool operator==(const ordered_json& value, const char* text) noexcept {
  const auto* held = value.get_ptr<const ordered_json::string_t*>();
  return held != nullptr && *held == text;
}
inline bool operator!=(const ordered_json& value, const char* text) noexcept { return !(value == text); }

}  // namespace nlohmann
