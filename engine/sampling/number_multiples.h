// The keyword multipleOf of JSON Schema, as EBNF.
#pragma once

#include <optional>
#include <string>

#include "engine/sampling/number_grammar.h"

namespace smartkv {

// Returns an expression for the multiples of range.multiple_of in the range, only integers if `whole`. Returns nullopt
// if there is no multiple_of, if no grammar of reasonable size can express the multiples, or if every integer is a
// multiple. Throws NoValueError with the path "multipleOf" if the bounds leave no multiple.
std::optional<std::string> multiples_ebnf(const NumberRange& range, bool whole);

}  // namespace smartkv
