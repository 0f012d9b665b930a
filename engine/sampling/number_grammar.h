// JSON numbers within bounds, as EBNF. Any reader must get exactly the number that was bounded. Numbers therefore have
// at most 18 digits before the decimal point and as many after it as a double can distinguish. Without bounds they may
// have an exponent of two digits.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

struct NumberBound {
  nlohmann::ordered_json value;  // a number of any size
  bool exclusive = false;
  std::string key;  // the keyword, for error messages
};

struct NumberRange {
  std::optional<NumberBound> least, most;
  // multipleOf: a positive number, or null if there is none. The grammar enforces it
  //  - with both bounds, if they leave at most 1,024 multiples;
  //  - without bounds, if it is whole and divides 1,000, or if 1 is a multiple of it;
  //  - with any bounds, if it is 1 or 0.1, 0.01, and so on.
  // Other values are not enforced, except that a whole number allows integers only.
  nlohmann::ordered_json multiple_of;
};

// Return an expression for the integers, or the numbers, in the range. Both throw NoValueError if the range leaves no
// number. Its path is the keyword of a bound, or "multipleOf".
std::string integer_ebnf(const NumberRange& range);
std::string number_ebnf(const NumberRange& range);

}  // namespace smartkv
