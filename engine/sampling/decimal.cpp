#include "engine/sampling/decimal.h"

#include <algorithm>
#include <cstdlib>

namespace smartkv {

Decimal decimal(const nlohmann::ordered_json& number) {
  std::string text = number.dump();
  Decimal result;
  result.negative = text.starts_with('-');
  if (result.negative) text.erase(0, 1);
  int64_t exponent = 0;  // its absolute value is at most 308, or a little more for subnormal numbers
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::strtoll(text.c_str() + e + 1, nullptr, 10);
    text.erase(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string& whole = result.whole = text.substr(0, point);
  std::string& fraction = result.fraction = point < text.size() ? text.substr(point + 1) : "";
  const auto places = static_cast<size_t>(std::abs(exponent));
  if (exponent > 0) {
    if (fraction.size() < places) fraction.append(places - fraction.size(), '0');
    whole += fraction.substr(0, places);
    fraction.erase(0, places);
  } else if (exponent < 0) {
    if (whole.size() < places) whole.insert(0, places - whole.size(), '0');
    fraction.insert(0, whole.substr(whole.size() - places));
    whole.resize(whole.size() - places);
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (result.zero()) result.negative = false;
  return result;
}

}  // namespace smartkv
