#include "engine/text/added_tokens_files.h"

#include <algorithm>
#include <charconv>

namespace smartkv {
namespace {

using Json = nlohmann::json;

// Returns a string, or the "content" of an object. Returns "" for null.
std::string content_of(const JsonNode& node) {
  if (node.is_null()) return "";
  return node.json().is_object() ? node["content"].string() : node.string();
}

}  // namespace

AddedToken read_added_token(const JsonNode& node, TokenId id) {
  AddedToken token{node["content"].string(), id, node["special"].boolean_or(false)};
  token.normalized = node["normalized"].boolean_or(!token.special);
  token.lstrip = node["lstrip"].boolean_or(false);
  token.rstrip = node["rstrip"].boolean_or(false);
  token.single_word = node["single_word"].boolean_or(false);
  return token;
}

std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  if (!node.json().is_object()) node.fail("expected an object");
  for (const auto& [key, value] : node.json().items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabulary) {
      node.fail("expected token ids below " + std::to_string(kMaxVocabulary) + " as keys, found \"" + key + "\"");
    }
    tokens.push_back(read_added_token(node[key.c_str()], id));
  }
  return tokens;
}

void add_listed_tokens(const Json& tokens, const std::string& file, TokenizerConfig* config) {
  if (!tokens.is_object()) throw TokenizerError(file + ": expected an object");
  for (const auto& [content, id] : tokens.items()) {
    const TokenId token = JsonNode(id, content, file).token();
    const auto same = [&, name = content](const AddedToken& other) {
      return other.id == token || other.content == name;
    };
    if (std::none_of(config->added.begin(), config->added.end(), same))
      config->added.push_back({content, token, false});
  }
}

void add_special_tokens(const Json& map, const std::string& file, TokenizerConfig* config) {
  const JsonNode root(map, "", file);
  std::vector<std::string> names;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) names.push_back(content_of(root[key]));
  if (config->bos.empty()) config->bos = names[0];
  if (config->eos.empty()) config->eos = names[1];
  if (root.has("additional_special_tokens")) {
    for (const JsonNode& node : root["additional_special_tokens"].items()) names.push_back(content_of(node));
  }
  for (AddedToken& token : config->added) {
    if (std::find(names.begin(), names.end(), token.content) != names.end()) token.special = true;
  }
}

}  // namespace smartkv
