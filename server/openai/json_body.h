// Strict JSON: what nlohmann/json accepts, less duplicate keys and deep nesting.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv::openai {

// The message names the position or the key.
class JsonSyntaxError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr int kMaxJsonDepth = 64;

// Keeps the order of keys. Throws JsonSyntaxError. `comments`: // and /* */ are skipped.
nlohmann::ordered_json parse_json(std::string_view text, bool comments = false);

}  // namespace smartkv::openai
