#include "engine/sampling/number_multiples.h"

#include <cstdlib>
#include <numeric>

#include "engine/sampling/decimal.h"

namespace smartkv {
namespace {

constexpr size_t kMostPlaces = 6, kMostStepDigits = 15, kMostWholeDigits = 18, kBoundPlaces = 15;
constexpr int64_t kMostListed = 1024;

__extension__ using Wide = __int128;  // holds 33 digits: a bound with kBoundPlaces digits after the decimal point

int64_t power_of_ten(size_t places) {
  int64_t result = 1;
  for (size_t i = 0; i < places; ++i) result *= 10;
  return result;
}

// Returns the bound in units of `step` / 10^places, rounded towards the inside of the range. Returns nullopt if the
// bound is beyond every number that can be written.
std::optional<Wide> index_of(const NumberBound& bound, bool is_least, int64_t step, size_t places) {
  const Decimal exact = decimal(bound.value);
  if (exact.whole.size() > kMostWholeDigits) return std::nullopt;
  std::string fraction = exact.fraction.substr(0, kBoundPlaces);
  fraction.resize(kBoundPlaces, '0');
  Wide value = 0;
  for (const char digit : exact.whole + fraction) value = value * 10 + (digit - '0');
  const Wide unit = static_cast<Wide>(step) * power_of_ten(kBoundPlaces - places);
  const bool cut = exact.fraction.size() > kBoundPlaces;
  const bool upward = is_least != exact.negative;  // the size of the index has to be rounded up
  Wide index = value / unit;
  const bool exact_index = value % unit == 0 && !cut;
  if (upward && (!exact_index || bound.exclusive)) ++index;
  if (!upward && exact_index && bound.exclusive) --index;
  return exact.negative ? -index : index;
}

std::string text_of(Wide index, int64_t step, size_t places) {
  const auto value = static_cast<int64_t>(index * step);
  std::string digits = std::to_string(std::abs(value));
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  std::string fraction = digits.substr(digits.size() - places);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return (value < 0 ? "-" : "") + digits.substr(0, digits.size() - places) + (fraction.empty() ? "" : "." + fraction);
}

// Matches the multiples of `step` by their last digits: integers, or with `fraction` multiples of step / 10^places.
// REQUIRES: `step` divides 10^places.
std::string by_last_digits(int64_t step, size_t places, bool fraction) {
  std::vector<std::string> ends;
  const int64_t whole = power_of_ten(places);
  for (int64_t value = 0; value < whole; value += step) {
    const std::string digits = std::to_string(value);
    ends.push_back(std::string(places - digits.size(), '0') + digits);
  }
  if (fraction) return R"("-"? ("0" | [1-9] [0-9]{0,14}) ("." )" + ebnf_choice(ends) + ")?";
  std::vector<std::string> small;
  for (int64_t value = step; value < whole; value += step) small.push_back(std::to_string(value));
  const std::string large = "[1-9] [0-9]{0," + std::to_string(17 - places) + "} " + ebnf_choice(ends);
  return R"(("0" | "-"? ()" + (small.empty() ? "" : ebnf_choice(small) + " | ") + large + "))";
}

}  // namespace

std::optional<std::string> multiples_ebnf(const NumberRange& range, bool whole) {
  if (range.multiple_of.is_null()) return std::nullopt;
  const Decimal exact = decimal(range.multiple_of);
  size_t places = exact.fraction.size();
  if (places > kMostPlaces || exact.whole.size() + places > kMostStepDigits) return std::nullopt;
  int64_t step = std::strtoll((exact.whole + exact.fraction).c_str(), nullptr, 10);
  if (whole) {
    step /= std::gcd(step, power_of_ten(places));
    places = 0;
  }
  if (step == 1) return std::nullopt;  // every integer is a multiple, or the step is 10^-places (see number_ebnf())
  if (!range.least && !range.most) {
    if (places > 0)
      return power_of_ten(places) % step == 0 ? std::optional(by_last_digits(step, places, true)) : std::nullopt;
    for (size_t digits = 1; digits <= 3; ++digits) {
      if (power_of_ten(digits) % step == 0) return by_last_digits(step, digits, false);
    }
    return std::nullopt;
  }
  if (!range.least || !range.most) return std::nullopt;
  const std::optional<Wide> low = index_of(*range.least, true, step, places),
                            high = index_of(*range.most, false, step, places);
  if (!low || !high || *high - *low >= kMostListed) return std::nullopt;
  std::vector<std::string> texts;
  for (Wide index = *low; index <= *high; ++index) texts.push_back(text_of(index, step, places));
  if (texts.empty()) throw NoValueError("multipleOf", "no multiple satisfies the bounds");
  return ebnf_choice(texts);
}

}  // namespace smartkv
