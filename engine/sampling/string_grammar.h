// JSON strings as EBNF, quotes included.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// A maxLength of at least this many characters is not enforced beside a pattern or format.
constexpr int64_t kFreeLength = 256;

// Returns the expression for a string with the schema's pattern, format, minLength and maxLength. A string with a
// maxLength contains no characters that need an escape, and neither does a large character class of a pattern. If there
// are both a pattern and a format, the pattern is enforced, or the format if the pattern cannot be made into a grammar.
// Throws GrammarError whose path is the keyword.
std::string string_ebnf(const nlohmann::ordered_json& schema, EbnfGrammar* grammar);

// Returns a regular expression that matches only texts which the format allows, though perhaps not all of them. Returns
// null for an unknown format, which is not enforced. The pointer stays valid.
const std::string* format_regex(const std::string& format);

// Returns the expression for a string without escapes that differs from all `names`. Throws GrammarError with an empty
// path for a name of more than 256 characters.
std::string other_name_ebnf(const std::vector<std::string>& names, EbnfGrammar* grammar);

// Returns the JSON text of a string, as a literal.
std::string name_ebnf(const std::string& name);

}  // namespace smartkv
