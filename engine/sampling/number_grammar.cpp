#include "engine/sampling/number_grammar.h"

#include <algorithm>
#include <cstdlib>

#include "engine/sampling/decimal.h"
#include "engine/sampling/number_multiples.h"

namespace smartkv {
namespace {

constexpr int64_t kWholeDigits = 18;
constexpr int64_t kLargest = 999'999'999'999'999'999;
constexpr int64_t kSignificantDigits = 15;  // decimal digits that a double always distinguishes

std::string any_digits(int64_t from, int64_t to) {
  return to <= 0 ? "\"\"" : "[0-9]{" + std::to_string(from) + "," + std::to_string(to) + "}";
}

// Matches strings of digits from `low` to `high`. REQUIRES: `low` and `high` have the same length.
std::string between(const std::string& low, const std::string& high) {
  if (low.empty()) return "\"\"";
  const auto n = static_cast<int64_t>(low.size());
  if (low == std::string(low.size(), '0') && high == std::string(high.size(), '9')) return any_digits(n, n);
  if (low[0] == high[0]) return ebnf_literal(low.substr(0, 1)) + " " + between(low.substr(1), high.substr(1));
  std::vector<std::string> result;
  result.push_back(ebnf_literal(low.substr(0, 1)) + " " + between(low.substr(1), std::string(low.size() - 1, '9')));
  if (high[0] - low[0] > 1) {
    const std::string first(1, static_cast<char>(low[0] + 1)), last(1, static_cast<char>(high[0] - 1));
    result.push_back("[" + first + "-" + last + "] " + any_digits(n - 1, n - 1));
  }
  result.push_back(ebnf_literal(high.substr(0, 1)) + " " + between(std::string(high.size() - 1, '0'), high.substr(1)));
  return ebnf_either(result);
}

// Matches the integers in [low, high] without leading zeros. REQUIRES: 0 <= low <= high.
std::string natural(int64_t low, int64_t high) {
  std::vector<std::string> result;
  const std::string last = std::to_string(high);
  for (size_t length = std::to_string(low).size(); length <= last.size(); ++length) {
    const std::string least = length == 1 ? "0" : std::string(1, '1').append(length - 1, '0');
    const std::string from = std::to_string(low).size() == length ? std::to_string(low) : least;
    result.push_back(between(from, length == last.size() ? last : std::string(length, '9')));
  }
  return ebnf_either(result);
}

// The absolute value of a bound: integer part, and fraction digits without trailing zeros.
struct Magnitude {
  int64_t whole = 0;
  std::string fraction;
  bool exclusive = false;
};

struct Bound {
  bool negative = false;
  Magnitude size;
};

// Reads a bound. Digits beyond those that numbers may have are rounded so that every number within the result is also
// within the bound. Throws NoValueError if no number can be.
Bound read_bound(const NumberBound& bound, bool is_least) {
  Decimal exact = decimal(bound.value);
  const bool outer = exact.negative == is_least;  // the numbers within the bound lie between it and zero
  Bound result{exact.negative, {0, exact.fraction, bound.exclusive}};
  if (exact.whole.size() > static_cast<size_t>(kWholeDigits)) {
    if (!outer) {
      throw NoValueError(bound.key, "expected at most 18 digits before the decimal point, found " + bound.value.dump());
    }
    result.size = {kLargest, "", false};
    return result;
  }
  if (!exact.whole.empty()) result.size.whole = std::strtoll(exact.whole.c_str(), nullptr, 10);
  if (exact.fraction.size() > static_cast<size_t>(kSignificantDigits)) {
    exact.fraction.resize(static_cast<size_t>(kSignificantDigits));
    exact.fraction.erase(exact.fraction.find_last_not_of('0') + 1);
    result.size = {result.size.whole, exact.fraction, !outer};
  }
  return result;
}

// A range of fractions, as digits after the decimal point. A null bound means that the side is unbounded.
struct FractionRange {
  const std::string* least = nullptr;
  const std::string* most = nullptr;
  bool above = false, below = false;  // whether `least` and `most` are exclusive
};

bool zero_is_in(const FractionRange& range) {
  const bool least = range.least == nullptr || (range.least->empty() && !range.above);
  const bool most = range.most == nullptr || !range.most->empty() || !range.below;
  return least && most;
}

// Matches 1 to `room` fraction digits within the range. Returns nullopt if there are none.
std::optional<std::string> fraction_digits(const FractionRange& range, int64_t room) {
  if (room <= 0) return std::nullopt;
  const bool bounded_below = range.least != nullptr && (!range.least->empty() || range.above);
  if (!bounded_below && range.most == nullptr) return any_digits(1, room);
  if (range.most != nullptr && range.most->empty()) {
    if (bounded_below || range.below) return std::nullopt;
    return "[0]{1," + std::to_string(room) + "}";
  }
  // Branch on the first digit. If it equals that of a bound, the rest of that bound applies to the remaining digits.
  const auto digit_of = [](const std::string* bound, char otherwise) {
    return bound == nullptr ? otherwise : bound->empty() ? '0' : (*bound)[0];
  };
  const char low = bounded_below ? digit_of(range.least, '0') : '0', high = digit_of(range.most, '9');
  const std::string least_rest = range.least == nullptr || range.least->empty() ? "" : range.least->substr(1);
  const std::string most_rest = range.most == nullptr ? "" : range.most->substr(1);
  std::vector<std::string> result;
  std::string free;
  for (char digit = low; digit <= high; ++digit) {
    FractionRange rest;
    if (bounded_below && digit == low) rest.least = &least_rest, rest.above = range.above;
    if (range.most != nullptr && digit == high) rest.most = &most_rest, rest.below = range.below;
    if (rest.least == nullptr && rest.most == nullptr) {
      free += digit;
      continue;
    }
    const std::optional<std::string> more = fraction_digits(rest, room - 1);
    const bool may_end = zero_is_in(rest);
    const std::string first = ebnf_literal(std::string(1, digit));
    if (more) result.push_back(first + " (" + *more + ")" + (may_end ? "?" : ""));
    if (!more && may_end) result.push_back(first);
  }
  if (!free.empty()) result.push_back("[" + free + "] " + any_digits(0, room - 1));
  if (result.empty()) return std::nullopt;
  return ebnf_either(result);
}

// Matches the decimal point and a fraction within the range, or nothing where the range includes zero. Returns nullopt
// if the range is empty.
std::optional<std::string> fraction(const FractionRange& range, int64_t room) {
  const std::optional<std::string> some = fraction_digits(range, room);
  const bool none = zero_is_in(range);
  if (some) return "(\".\" " + *some + ")" + (none ? "?" : "");
  if (none) return "\"\"";
  return std::nullopt;
}

// Adds the numbers, written with `sign`, whose absolute value is between `least` and `most`. `most` is null if there is
// no bound. `most_places` is the most digits after the decimal point.
void add_magnitudes(const std::string& sign, const Magnitude& least, const Magnitude* most, int64_t most_places,
                    std::vector<std::string>* result) {
  const int64_t last = most == nullptr ? kLargest : most->whole;
  if (least.whole > last) return;
  const int64_t bounded = most == nullptr ? least.whole : last;
  const auto longest =
      static_cast<int64_t>(std::max(least.fraction.size(), most == nullptr ? 0 : most->fraction.size()));
  const int64_t room = std::min(
      most_places, std::max(longest, kSignificantDigits - static_cast<int64_t>(std::to_string(bounded).size())));
  const auto add = [&](const std::string& whole, const FractionRange& range) {
    if (const auto tail = fraction(range, room)) result->push_back(sign + " " + whole + " " + *tail);
  };
  if (most != nullptr && least.whole == last) {
    return add(ebnf_literal(std::to_string(last)),
               {&least.fraction, &most->fraction, least.exclusive, most->exclusive});
  }
  add(ebnf_literal(std::to_string(least.whole)), {&least.fraction, nullptr, least.exclusive, false});
  const int64_t before_last = most == nullptr ? last : last - 1;
  if (least.whole < before_last) add(natural(least.whole + 1, before_last), {});
  if (most != nullptr) add(ebnf_literal(std::to_string(last)), {nullptr, &most->fraction, false, most->exclusive});
}

[[noreturn]] void none_left(const NumberRange& range) {
  throw NoValueError(range.least ? range.least->key : range.most->key, "no number satisfies the bounds");
}

// Returns the inclusive integer bound that admits the same integers as `bound`.
int64_t whole_bound(const NumberBound& bound, bool is_least) {
  const Bound read = read_bound(bound, is_least);
  const int64_t sign = read.negative ? -1 : 1;
  int64_t value = sign * read.size.whole;
  if (!read.size.fraction.empty()) {
    if (is_least && !read.negative) ++value;
    if (!is_least && read.negative) --value;
    return value;
  }
  return read.size.exclusive ? value + (is_least ? 1 : -1) : value;
}

std::string integers(const NumberRange& range) {
  if (!range.least && !range.most) return R"(("0" | "-"? [1-9] [0-9]{0,17}))";
  const int64_t low = std::max(-kLargest, range.least ? whole_bound(*range.least, true) : -kLargest);
  const int64_t high = std::min(kLargest, range.most ? whole_bound(*range.most, false) : kLargest);
  if (low > high) none_left(range);
  std::vector<std::string> result;
  if (high >= 0) result.push_back(natural(std::max<int64_t>(0, low), high));
  if (low < 0) result.push_back("\"-\" " + natural(std::max<int64_t>(1, -high), -low));
  return ebnf_either(result);
}

// Matches the numbers in the range. `most_places` is the most digits after the decimal point.
std::string numbers(const NumberRange& range, int64_t most_places) {
  if (!range.least && !range.most) {
    if (most_places < kSignificantDigits)
      return R"("-"? ("0" | [1-9] [0-9]{0,17}) ("." )" + any_digits(1, most_places) + ")?";
    return R"("-"? ("0" | [1-9] [0-9]{0,17}) ("." [0-9]{1,17})? ([eE] [+-]? [0-9]{1,2})?)";
  }
  std::optional<Bound> low, high;
  if (range.least) low = read_bound(*range.least, true);
  if (range.most) high = read_bound(*range.most, false);
  if (low && low->negative && low->size.whole == kLargest) low.reset();  // no number is farther from zero
  if (high && !high->negative && high->size.whole == kLargest) high.reset();
  std::vector<std::string> result;
  if (!high || !high->negative) {  // numbers >= 0
    const Magnitude from = low && !low->negative ? low->size : Magnitude{};
    add_magnitudes("\"\"", from, high ? &high->size : nullptr, most_places, &result);
  }
  if (!low || low->negative) {
    // Zero is excluded here, because it is written without a sign.
    const Magnitude from = high && high->negative ? high->size : Magnitude{0, "", true};
    add_magnitudes("\"-\"", from, low ? &low->size : nullptr, most_places, &result);
  }
  if (result.empty()) none_left(range);
  return ebnf_either(result);
}

}  // namespace

std::string integer_ebnf(const NumberRange& range) {
  if (const auto some = multiples_ebnf(range, true)) return *some;
  return integers(range);
}

std::string number_ebnf(const NumberRange& range) {
  if (range.multiple_of.is_null()) return numbers(range, kSignificantDigits);
  if (const auto some = multiples_ebnf(range, false)) return *some;
  const Decimal step = decimal(range.multiple_of);
  if (step.fraction.empty()) return integers(range);
  const bool power_of_ten = step.whole.empty() && step.fraction.find_first_not_of('0') + 1 == step.fraction.size() &&
                            step.fraction.back() == '1';
  return numbers(range, power_of_ten ? static_cast<int64_t>(step.fraction.size()) : kSignificantDigits);
}

}  // namespace smartkv
