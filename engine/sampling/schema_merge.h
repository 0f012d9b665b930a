// Merges two JSON schemas into one that is valid where both are. Used for allOf, and for keywords beside $ref, anyOf
// and oneOf.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv {

class EbnfGrammar;

// Returns whether the keyword does not affect validation.
bool is_annotation(std::string_view keyword);

// Returns a schema that validates exactly the values that both validate. `path` is the place of the schemas, for
// errors. Throws GrammarError naming a keyword that both have and that cannot be merged, and NoValueError if no value
// can validate. REQUIRES: both are objects; any of $ref, anyOf, oneOf and allOf appears at the top of at most one of
// them.
nlohmann::ordered_json merge_schemas(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                                     const std::string& path);

// Returns true if it is plain that no value validates against both, and false if in doubt. `grammar` counts the steps.
// REQUIRES: neither has $ref at its top.
bool exclude_each_other(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, EbnfGrammar* grammar);

// Returns the names of the types that a schema allows, each once. "integer" is left out if "number" is there. All types
// are returned if the schema names none. If the schema lists names that are not types of JSON, at least one of them is
// in the result, so that the caller notices.
std::vector<std::string> types_of(const nlohmann::ordered_json& schema);
// Returns the type of a value. Numbers without a fraction are "integer".
std::string type_of_value(const nlohmann::ordered_json& value);

}  // namespace smartkv
