// Parses JSON strictly: like nlohmann/json, but it refuses duplicate keys, deep nesting, and too many values or keys.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv::openai {

// Text that is not accepted. The message names the position or the key.
class JsonSyntaxError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr size_t kMaxJsonDepth = 64;
// A prompt of token ids has a value for each token. So many values take some tens of MB.
inline constexpr int kMaxJsonValues = 1 << 20;
// Keys of one object. Looking up a key goes through all of them.
inline constexpr size_t kMaxJsonKeys = 1024;

// How integers that do not fit 64 bits are read.
enum class Integers : uint8_t {
  kRounded,  // as doubles
  kExact,    // as exact integers: engine/text/exact_integer.h
};

struct JsonOptions {
  bool comments = false;  // skips // and /* */
  Integers integers = Integers::kRounded;
  // If set, the last value of a repeated key counts, as in most parsers. Otherwise a repeated key is an error.
  bool repeated_keys = false;
  size_t max_depth = kMaxJsonDepth;
};

// Parses `text` and keeps the order of keys. Throws JsonSyntaxError, also if a limit above is exceeded.
nlohmann::ordered_json parse_json(std::string_view text, const JsonOptions& options = {});

}  // namespace smartkv::openai
