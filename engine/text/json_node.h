// A value of tokenizer.json with its place in the file, for errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/pattern.h"
#include "engine/text/tokenizer.h"

namespace smartkv {

inline constexpr int64_t kMaxVocabulary = 1 << 21;

// Refers to the JSON value and the file's name, which must outlive it. A value of another type than the one asked for is a
// TokenizerError that names the file and the key.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path, const std::string& file);

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void unsupported() const;  // a valid value that asks for what is not implemented
  const nlohmann::json& json() const { return value_; }
  bool is_null() const { return value_.is_null(); }

  bool has(const char* key) const;              // the object has the key, and its value is not null
  JsonNode operator[](const char* key) const;   // null if the object lacks the key
  std::vector<JsonNode> items() const;          // of an array
  std::string type() const { return (*this)["type"].string(); }

  std::string string() const;
  std::string string_or(const std::string& otherwise) const { return is_null() ? otherwise : string(); }
  std::string character() const;  // a string of one character, as UTF-8
  bool boolean() const;
  bool boolean_or(bool otherwise) const { return is_null() ? otherwise : boolean(); }
  int64_t count() const;          // an integer from 0 to 2^31 - 1
  TokenId token() const;
  Pattern pattern() const;        // {"String": ...} or {"Regex": ...}

 private:
  const nlohmann::json& value_;
  std::string path_;
  const std::string& file_;
};

}  // namespace smartkv
