// Converts one JSON schema into rules; the implementation of json_schema.h. json_schema.cpp defines the conversion of
// values in general, schema_containers.cpp that of arrays and objects.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/json_schema.h"
#include "engine/sampling/number_grammar.h"
#include "engine/sampling/schema_references.h"

namespace smartkv {

// The conversion of one schema. The schema `root` and the grammar outlive it.
//
// Functions that take a `path` expect the place of `schema`, ending in a dot unless it is empty, and put it in front of
// the paths of errors. `depth` counts the enclosing schemas.
class SchemaGrammar {
 public:
  using Json = nlohmann::ordered_json;

  SchemaGrammar(const Json& root, Unsupported unsupported, EbnfGrammar* grammar)
      : references_(root), lenient_(unsupported == Unsupported::kLeftOut), grammar_(*grammar) {}

  // Returns the expression for a value that validates. `is_option` means that other schemas may be taken instead; then
  // a schema that allows no value is an error even under Unsupported::kLeftOut.
  std::string value(const Json& schema, const std::string& path, int depth = 0, bool is_option = false);

 private:
  struct Property {
    std::string ebnf;  // expression for name and value
    bool required = false;
  };

  std::string rule_of(const Json& schema, const std::string& path, int depth);
  std::string expression(const Json& schema, const std::string& path, int depth);
  std::string without_fault(const Json& schema, const std::string& path, int depth, const GrammarError& error);
  std::string reference(const Json& uri, const std::string& path, int depth);
  // Returns the schema with the target of $ref merged into the keywords beside it.
  Json resolved(const Json& schema, const std::string& path, int depth);
  Json merged(const Json& a, const Json& b, const std::string& path);
  const Json& flattened(const Json& schema, const std::string& path, int depth);
  std::string options(const Json& schema, const char* key, const std::string& path, int depth);
  void check_exclusive(const std::vector<Json>& branches, const std::string& path);
  std::string listed(const Json& schema, const std::string& path);
  std::string typed(const Json& schema, const std::string& path, int depth);
  std::string of_type(const std::string& type, const Json& schema, const std::string& path, int depth);
  std::string any();

  std::string array(const Json& schema, const std::string& path, int depth);
  std::string object(const Json& schema, const std::string& path, int depth);
  // Converts an object schema that names no property.
  std::string map(const Json& schema, int64_t least, int64_t most, const std::string& path, int depth);
  std::string map_name(const Json& schema, const std::string& path, int depth);
  std::string ordered(const std::vector<Property>& members, const std::string& more);
  std::string series(const std::string& item, int64_t least, int64_t most) const;
  std::string pair(const std::string& name, const std::string& of) const;
  std::string braces(const std::string& members, bool may_be_empty) const;
  std::string comma() const { return "\",\" " + space_; }

  SchemaReferences references_;
  bool lenient_;
  EbnfGrammar& grammar_;
  std::string space_ = json_space(), any_;
  // Names of rules by the schema's text. Equal schemas become one rule, and schemas that contain themselves end. A name
  // is empty while its rule is being made and no other rule refers to it yet.
  std::unordered_map<std::string, std::string> known_;
  // Results of flattened() by the schema's text. nullopt while a result is being made.
  std::unordered_map<std::string, std::optional<Json>> flat_;
  std::unordered_map<std::string, std::string> by_reference_;  // names of rules by the text of $ref
};

// Returns the path of a member of the schema at `path`.
inline std::string schema_path(const std::string& path, const std::string& key) { return path + key + "."; }
inline std::string schema_path(const std::string& path, const std::string& key, size_t index) {
  return path + key + "[" + std::to_string(index) + "].";
}

// Throws GrammarError for a keyword that no grammar can express, or whose value is invalid.
void check_schema_keywords(const nlohmann::ordered_json& schema, const std::string& path);

[[noreturn]] inline void schema_expected(const std::string& path, const std::string& what) {
  throw GrammarError(path, "expected " + what);
}

}  // namespace smartkv
