// Strings of JSON as EBNF, quotes included.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// A maxLength from here on does not bind a string that has a pattern or format.
constexpr int64_t kFreeLength = 256;

// By the keywords pattern, format, minLength and maxLength. A string that is bounded, by length or by a class of many
// characters, holds none that would have to be escaped. Beside a pattern that can be made into a grammar a format is no
// constraint; beside any other, the format is the constraint. Throws GrammarError whose path is the keyword.
std::string string_ebnf(const nlohmann::ordered_json& schema, EbnfGrammar* grammar);

// A regular expression for a format, which takes at most what the format allows; null: an unknown format, which is no constraint.
const std::string* format_regex(const std::string& format);

// A string without escapes that is none of `names`. Throws GrammarError with an empty path for a name of more than 256 characters.
std::string other_name_ebnf(const std::vector<std::string>& names, EbnfGrammar* grammar);

// The JSON text of a string, as a literal.
std::string name_ebnf(const std::string& name);

}  // namespace smartkv
