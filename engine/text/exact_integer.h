// Integers beyond 64 bits. nlohmann's JSON does not support them, so a binary value holds their decimal digits. Parsers
// create such values for integers that must be written back exactly. Chat templates and the server's dump() write them
// as integers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace smartkv {

inline constexpr uint64_t kExactInteger = 64;  // The subtype of the binary value.

// Returns a value that holds an integer. REQUIRES: `digits` is a JSON integer.
inline nlohmann::ordered_json exact_integer(std::string_view digits) {
  return nlohmann::ordered_json::binary({digits.begin(), digits.end()}, kExactInteger);
}

inline bool is_exact_integer(const nlohmann::ordered_json& value) {
  return value.is_binary() && value.get_binary().has_subtype() && value.get_binary().subtype() == kExactInteger;
}

// Returns the integer as text. REQUIRES: is_exact_integer(value).
inline std::string digits_of(const nlohmann::ordered_json& value) {
  return {value.get_binary().begin(), value.get_binary().end()};
}

}  // namespace smartkv
