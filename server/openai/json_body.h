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
// A prompt of token ids has a value for each; so many take some tens of MB.
inline constexpr int kMaxJsonValues = 1 << 20;
// Of one object: keys are looked up by going through them.
inline constexpr size_t kMaxJsonKeys = 1024;

// Keeps the order of keys. Throws JsonSyntaxError, also beyond the limits above and for a key that stands twice.
// `comments`: // and /* */ are skipped. `repeated_keys`: the last one counts, as for most readers.
nlohmann::ordered_json parse_json(std::string_view text, bool comments = false, bool repeated_keys = false);

}  // namespace smartkv::openai
