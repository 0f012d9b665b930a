// JSON numbers as decimal digits, so that bounds of any size are exact.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace smartkv {

// A decimal number: sign, integer part and fraction.
struct Decimal {
  bool negative = false;        // false for zero
  std::string whole, fraction;  // digits without leading zeros and trailing zeros, respectively; empty for 0

  bool zero() const { return whole.empty() && fraction.empty(); }
};

// Converts a JSON number.
Decimal decimal(const nlohmann::ordered_json& number);

}  // namespace smartkv
