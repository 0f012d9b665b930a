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

inline constexpr size_t kMaxJsonDepth = 64;
// A prompt of token ids has a value for each; so many take some tens of MB.
inline constexpr int kMaxJsonValues = 1 << 20;
// Of one object: keys are looked up by going through them.
inline constexpr size_t kMaxJsonKeys = 1024;

enum class Integers : uint8_t {
  kRounded,  // beyond 64 bits: as doubles
  kExact,    // beyond 64 bits: engine/text/exact_integer.h
};

struct JsonOptions {
  bool comments = false;  // skips // and /* */
  Integers integers = Integers::kRounded;
  bool repeated_keys = false;  // the last value of a key counts, as for most readers; false: a key that stands twice is an error
};

// Keeps the order of keys. Throws JsonSyntaxError, also beyond the limits above.
nlohmann::ordered_json parse_json(std::string_view text, const JsonOptions& options = {});

}  // namespace smartkv::openai
