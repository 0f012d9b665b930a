// Numbers of JSON within bounds, as EBNF. So that any reader gets exactly the number that was bounded, they have at most
// 18 digits before the point, as many behind it as a double can tell apart, and without bounds an exponent of two digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

struct NumberBound {
  nlohmann::ordered_json value;  // a number
  bool exclusive = false;
};

// Both throw GrammarError (with an empty path) for bounds that leave no number, or that have too many digits.
std::string integer_ebnf(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);
std::string number_ebnf(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);

}  // namespace smartkv
