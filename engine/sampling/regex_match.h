// Matches texts against the regular expressions of a JSON schema.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv {

// Returns whether `regex`, in ECMAScript's syntax, matches anywhere in `text`. Adds the steps that it took to `*steps`,
// in steps of EbnfGrammar::spend(). Throws GrammarError (ebnf.h) with an empty path if `regex` is not a regular
// expression or takes too many steps.
bool regex_matches(const std::string& regex, const std::string& text, int64_t* steps);

}  // namespace smartkv
