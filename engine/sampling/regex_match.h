// Whether a text matches a regular expression of a JSON schema.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv {

// Whether `regex`, in ECMAScript's syntax, matches somewhere in `text`. Throws GrammarError (ebnf.h) with an empty path for
// what is no regular expression, and for one that takes too many steps. Adds to `*steps` what it took, in EbnfGrammar's steps.
bool regex_matches(const std::string& regex, const std::string& text, int64_t* steps);

}  // namespace smartkv
