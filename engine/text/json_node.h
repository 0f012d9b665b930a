// A value of tokenizer.json together with its path in the file, which appears in errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/pattern.h"
#include "engine/text/tokenizer.h"

namespace smartkv {

inline constexpr int64_t kMaxVocabulary = 1 << 21;

// Refers to the JSON value and the name of the file; both must outlive it. Accessors throw TokenizerError naming the
// file and the key if the value has another type.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path, const std::string& file);

  [[noreturn]] void fail(const std::string& message) const;  // Throws TokenizerError with file, key and message.
  [[noreturn]] void unsupported() const;  // Throws TokenizerError for a valid value that is not supported.
  const nlohmann::json& json() const { return value_; }
  bool is_null() const { return value_.is_null(); }

  bool has(const char* key) const;             // The value is an object, and the key's value is not null.
  JsonNode operator[](const char* key) const;  // A node of null if the object lacks the key.
  std::vector<JsonNode> items() const;         // The elements of an array.
  std::string type() const { return (*this)["type"].string(); }

  std::string string() const;
  std::string character() const;  // A string of one character, in UTF-8.
  bool boolean() const;
  bool boolean_or(bool otherwise) const { return is_null() ? otherwise : boolean(); }
  int64_t count() const;    // An integer from 0 to 2^31 - 1.
  TokenId token() const;    // An integer from 0 to kMaxVocabulary - 1.
  Pattern pattern() const;  // {"String": ...} or {"Regex": ...}

 private:
  const nlohmann::json& value_;
  std::string path_;
  const std::string& file_;
};

}  // namespace smartkv
