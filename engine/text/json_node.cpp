#include "engine/text/json_node.h"

#include <limits>

#include "engine/text/utf8.h"

namespace smartkv {

using Json = nlohmann::json;

JsonNode::JsonNode(const Json& value, std::string path, const std::string& file)
    : value_(value), path_(std::move(path)), file_(file) {}

void JsonNode::fail(const std::string& message) const { throw TokenizerError(file_ + ": " + path_ + ": " + message); }

void JsonNode::unsupported() const {
  fail(value_.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 120) + " is not supported");
}

bool JsonNode::has(const char* key) const {
  return value_.is_object() && value_.contains(key) && !value_[key].is_null();
}

JsonNode JsonNode::operator[](const char* key) const {
  if (!value_.is_object()) fail("expected an object");
  static const Json kNull;
  return {value_.contains(key) ? value_[key] : kNull, path_.empty() ? key : path_ + "." + key, file_};
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_.is_array()) fail("expected an array");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_.size(); ++i)
    nodes.emplace_back(value_[i], path_ + "[" + std::to_string(i) + "]", file_);
  return nodes;
}

std::string JsonNode::string() const {
  if (!value_.is_string()) fail("expected a string");
  return value_.get<std::string>();
}

std::string JsonNode::character() const {
  std::string text = string();
  if (text.empty() || utf8_length(text) != text.size()) fail("expected a string of one character");
  return text;
}

bool JsonNode::boolean() const {
  if (!value_.is_boolean()) fail("expected true or false");
  return value_.get<bool>();
}

int64_t JsonNode::count() const {
  if (!value_.is_number_unsigned() || value_.get<uint64_t>() > std::numeric_limits<int32_t>::max())
    fail("expected a whole number");
  return value_.get<int64_t>();
}

TokenId JsonNode::token() const {
  if (!value_.is_number_unsigned() || value_.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary)) {
    fail("expected a token id below " + std::to_string(kMaxVocabulary));
  }
  return value_.get<TokenId>();
}

Pattern JsonNode::pattern() const {
  if (!has("Regex")) return Pattern::literal((*this)["String"].string());
  const JsonNode regex = (*this)["Regex"];
  try {
    return Pattern(regex.string());
  } catch (const TokenizerError& error) {
    regex.fail(error.what());
  }
}

}  // namespace smartkv
