// Strings of JSON as EBNF, quotes included.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// By the keywords pattern, format, minLength and maxLength. A string that is bounded, by length or by a class of many
// characters, holds none that would have to be escaped. Throws GrammarError whose path is the keyword.
std::string string_ebnf(const nlohmann::ordered_json& schema, EbnfGrammar* grammar);

// A string without escapes that is none of `names`.
std::string other_name_ebnf(const std::vector<std::string>& names, EbnfGrammar* grammar);

// The JSON text of a string, as a literal.
std::string name_ebnf(const std::string& name);

}  // namespace smartkv
