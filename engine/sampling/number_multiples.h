// JSON schema's multipleOf, as EBNF.
#pragma once

#include <optional>
#include <string>

#include "engine/sampling/number_grammar.h"

namespace smartkv {

// The multiples in the range; nothing where no grammar of reasonable size says them, or every integer is one. `whole`: only
// integers. Throws NoValueError as integer_ebnf() does.
std::optional<std::string> multiples_ebnf(const NumberRange& range, bool whole);

}  // namespace smartkv
