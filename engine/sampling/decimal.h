// Numbers of JSON as decimal digits, so that bounds of any size are exact.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace smartkv {

struct Decimal {
  bool negative = false;         // never of zero
  std::string whole, fraction;   // digits without zeros at the outer ends; empty: 0

  bool zero() const { return whole.empty() && fraction.empty(); }
};

Decimal decimal(const nlohmann::ordered_json& number);

}  // namespace smartkv
