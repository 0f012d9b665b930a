// Validates values against a JSON schema, to filter the values of `enum` and `const` by the keywords beside them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/schema_references.h"

namespace smartkv {

// Returns whether `value` validates against `schema`. `grammar` counts the steps. Throws GrammarError, also if the
// schema is invalid; its path begins with `path`.
bool validates(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, SchemaReferences* references,
               EbnfGrammar* grammar, const std::string& path);

// Returns about how long it takes to copy or compare a value, in steps of EbnfGrammar::spend().
int64_t weight(const nlohmann::ordered_json& value);

}  // namespace smartkv
