// Whether a value validates against a JSON schema: for `enum` and `const` beside other keywords.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/schema_references.h"

namespace smartkv {

// Steps are counted by `grammar`. Throws GrammarError with a path that begins with `path`, for an invalid schema too.
bool validates(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, SchemaReferences* references,
               EbnfGrammar* grammar, const std::string& path);

// About how long it takes to copy or compare a value, in EbnfGrammar's steps.
int64_t weight(const nlohmann::ordered_json& value);

}  // namespace smartkv
