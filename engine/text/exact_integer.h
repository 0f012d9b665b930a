// Integers beyond 64 bits in nlohmann's JSON, which has none: a binary value holds their decimal digits. Parsers make such values
// where an integer must come out as it went in. Chat templates and the server's dump() write them as integers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace smartkv {

inline constexpr uint64_t kExactInteger = 64;  // the subtype of the binary value

// REQUIRES: `digits` is a JSON integer.
inline nlohmann::ordered_json exact_integer(std::string_view digits) {
  return nlohmann::ordered_json::binary({digits.begin(), digits.end()}, kExactInteger);
}

inline bool is_exact_integer(const nlohmann::ordered_json& value) {
  return value.is_binary() && value.get_binary().has_subtype() && value.get_binary().subtype() == kExactInteger;
}

// REQUIRES: is_exact_integer(value).
inline std::string digits_of(const nlohmann::ordered_json& value) { return {value.get_binary().begin(), value.get_binary().end()}; }

}  // namespace smartkv
