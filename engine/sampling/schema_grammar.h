// The conversion of one JSON schema into rules: what json_schema.h promises. json_schema.cpp holds the values of all kinds,
// schema_containers.cpp arrays and objects.
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

class SchemaGrammar {
 public:
  using Json = nlohmann::ordered_json;

  SchemaGrammar(const Json& root, Unsupported unsupported, EbnfGrammar* grammar)
      : references_(root), lenient_(unsupported == Unsupported::kLeftOut), grammar_(*grammar) {}

  // The expression for a value that validates. `path`: where the schema is, ending in a dot; `depth`: schemas around it;
  // `is_option`: others may be taken instead, so that a schema of no value is an error in any case.
  std::string value(const Json& schema, const std::string& path, int depth = 0, bool is_option = false);

 private:
  struct Property {
    std::string ebnf;  // name and value
    bool required = false;
  };

  std::string rule_of(const Json& schema, const std::string& path, int depth);
  std::string expression(const Json& schema, const std::string& path, int depth);
  std::string without_fault(const Json& schema, const std::string& path, int depth, const GrammarError& error);
  std::string reference(const Json& uri, const std::string& path, int depth);
  // With the target of $ref merged into the keywords beside it.
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
  std::string map(const Json& schema, int64_t least, int64_t most, const std::string& path, int depth);  // names no property
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
  // Rules by the schema's text, so that equal schemas are one rule, and those that contain themselves end. Empty while nobody
  // refers to the rule that is being made.
  std::unordered_map<std::string, std::string> known_;
  std::unordered_map<std::string, std::optional<Json>> flat_;   // likewise; nothing: being made
  std::unordered_map<std::string, std::string> by_reference_;   // rules
};

// The path of a member of the schema at `path`.
inline std::string schema_path(const std::string& path, const std::string& key) { return path + key + "."; }
inline std::string schema_path(const std::string& path, const std::string& key, size_t index) {
  return path + key + "[" + std::to_string(index) + "].";
}

// Throws GrammarError for a keyword that no grammar says, or one whose value is none.
void check_schema_keywords(const nlohmann::ordered_json& schema, const std::string& path);

[[noreturn]] inline void schema_expected(const std::string& path, const std::string& what) {
  throw GrammarError(path, "expected " + what);
}

}  // namespace smartkv
