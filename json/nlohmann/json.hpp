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

#define SMARTKV_COMPARE(Json, Text)                               \
  inline bool operator==(const Json& value, Text text) noexcept { \
    const auto* held = value.get_ptr<const Json::string_t*>();    \
    return held != nullptr && *held == text;                      \
  }                                                               \
  inline bool operator!=(const Json& value, Text text) noexcept { return !(value == text); }
SMARTKV_COMPARE(json, const char*)
SMARTKV_COMPARE(json, const std::string&)
SMARTKV_COMPARE(ordered_json, const char*)
SMARTKV_COMPARE(ordered_json, const std::string&)
#undef SMARTKV_COMPARE

}  // namespace nlohmann
