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
  nlohmann::ordered_json value;  // a number of any size
  bool exclusive = false;
  std::string key;               // the keyword, for errors
};

struct NumberRange {
  std::optional<NumberBound> least, most;
  // multipleOf: a positive number, or null. Kept if it is whole and divides 1,000, or its multiples make up 1, or if the bounds
  // leave at most 1,024 multiples; else it is no constraint.
  nlohmann::ordered_json multiple_of;
};

// Both throw NoValueError with the bound's keyword as path if the range leaves no number.
std::string integer_ebnf(const NumberRange& range);
std::string number_ebnf(const NumberRange& range);

}  // namespace smartkv
