// What holds when two JSON schemas hold: for allOf, and for what stands beside $ref, anyOf and oneOf.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv {

class EbnfGrammar;

// Keywords that say nothing about what is valid.
bool is_annotation(std::string_view keyword);

// Both are objects without $ref, anyOf, oneOf and allOf at their top, but for one of them in either; `path`: where, for
// errors. Throws GrammarError naming a keyword that both have and that cannot be merged.
nlohmann::ordered_json merge_schemas(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                                     const std::string& path);

// Whether no value validates against both; false where this is not plain to see. Both without $ref at their top. Steps are
// counted by `grammar`.
bool exclude_each_other(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, EbnfGrammar* grammar);

// The names of types that a schema allows, each once, "integer" never beside "number"; all if it names none. Of a list that
// names others than JSON's types, one of these at least is among them.
std::vector<std::string> types_of(const nlohmann::ordered_json& schema);
// Of a value; "integer" for numbers without a fraction.
std::string type_of_value(const nlohmann::ordered_json& value);

}  // namespace smartkv
