// Resolves the references of a JSON schema. They lead within the schema, by JSON pointer, $anchor or $id.
#pragma once

#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace smartkv {

// Most nested schemas. Without a limit, merging schemas that refer to themselves would not end.
inline constexpr int kSchemaDepth = 128;

class SchemaReferences {
 public:
  explicit SchemaReferences(const nlohmann::ordered_json& root) : root_(root) {}  // outlives this

  // Returns the schema that `$ref: reference` refers to. Throws GrammarError (ebnf.h) with the path `path` + "$ref" if
  // there is none.
  const nlohmann::ordered_json& target(const nlohmann::ordered_json& reference, const std::string& path);

 private:
  using Json = nlohmann::ordered_json;
  void index(const Json& value);

  const Json& root_;
  bool indexed_ = false;
  std::map<std::string, const Json*> ids_, anchors_;
};

}  // namespace smartkv
