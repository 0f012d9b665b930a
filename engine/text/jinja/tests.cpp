#include <algorithm>
#include <map>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/strings.h"

namespace smartkv::jinja {
namespace {

// A call of a test.
struct Subject {
  const std::string& name;  // The name of the test.
  const Value& value;
  const Value* other;  // The argument of the test. Null if there is none.
  Environment& environment;
};
using Test = bool (*)(const Subject&);
// A test and the number of its arguments.
struct TestRow {
  Test test;
  size_t arguments = 0;
};

int order(const Subject& it) {
  it.environment.spend(std::min(it.value.extent().weight, it.other->extent().weight) / 8);
  return order_of(it.value, *it.other);
}
bool same(const Subject& it) {
  it.environment.spend(std::min(it.value.extent().weight, it.other->extent().weight) / 8);
  return equal(it.value, *it.other);
}
bool identical(const Subject& it) {
  if (it.value.as_list() != nullptr) return it.value.as_list() == it.other->as_list();
  if (it.value.as_dict() != nullptr) return it.value.as_dict() == it.other->as_dict();
  return it.value.type_name() == it.other->type_name() && same(it);
}
bool is_boolean(const Subject& it, bool wanted) {
  return it.value.as<bool>() != nullptr && *it.value.as<bool>() == wanted;
}

bool is_multiple(const Subject& it, const Value& divisor) {
  return equal(binary("%", it.value, divisor, it.environment), 0);
}
bool is_iterable(const Subject& it) {
  return it.value.as_list() != nullptr || it.value.as<std::string>() != nullptr || it.value.as_mapping() != nullptr ||
         it.value.is_undefined();
}
bool is_sequence(const Subject& it) {
  return is_iterable(it) && (it.value.as_list() == nullptr || it.value.as_sequence() != nullptr);
}
bool has_case(const Subject& it) {
  const std::string text = it.environment.text_of(it.value), low = lower(text), high = upper(text);
  return low != high && text == (it.name == "lower" ? low : high);
}

const std::map<std::string, TestRow, std::less<>>& tests() {
  static const std::map<std::string, TestRow, std::less<>> table = {
      {"==", {same, 1}},
      {"eq", {same, 1}},
      {"equalto", {same, 1}},
      {"!=", {[](const Subject& it) { return !same(it); }, 1}},
      {"ne", {[](const Subject& it) { return !same(it); }, 1}},
      {"<", {[](const Subject& it) { return order(it) < 0; }, 1}},
      {"lt", {[](const Subject& it) { return order(it) < 0; }, 1}},
      {"lessthan", {[](const Subject& it) { return order(it) < 0; }, 1}},
      {"<=", {[](const Subject& it) { return order(it) <= 0; }, 1}},
      {"le", {[](const Subject& it) { return order(it) <= 0; }, 1}},
      {">", {[](const Subject& it) { return order(it) > 0; }, 1}},
      {"gt", {[](const Subject& it) { return order(it) > 0; }, 1}},
      {"greaterthan", {[](const Subject& it) { return order(it) > 0; }, 1}},
      {">=", {[](const Subject& it) { return order(it) >= 0; }, 1}},
      {"ge", {[](const Subject& it) { return order(it) >= 0; }, 1}},
      {"in", {[](const Subject& it) { return contains(*it.other, it.value, it.environment); }, 1}},
      {"sameas", {identical, 1}},
      {"divisibleby", {[](const Subject& it) { return is_multiple(it, *it.other); }, 1}},
      {"even", {[](const Subject& it) { return is_multiple(it, 2); }}},
      {"odd", {[](const Subject& it) { return equal(binary("%", it.value, 2, it.environment), 1); }}},
      {"defined", {[](const Subject& it) { return !it.value.is_undefined(); }}},
      {"undefined", {[](const Subject& it) { return it.value.is_undefined(); }}},
      {"none", {[](const Subject& it) { return it.value.is_none(); }}},
      {"string", {[](const Subject& it) { return it.value.as<std::string>() != nullptr; }}},
      {"mapping", {[](const Subject& it) { return it.value.as_mapping() != nullptr; }}},
      {"number", {[](const Subject& it) { return it.value.is_number() || it.value.as<BigInteger>() != nullptr; }}},
      {"integer",
       {[](const Subject& it) { return it.value.as<int64_t>() != nullptr || it.value.as<BigInteger>() != nullptr; }}},
      {"float", {[](const Subject& it) { return it.value.as<double>() != nullptr; }}},
      {"boolean", {[](const Subject& it) { return it.value.as<bool>() != nullptr; }}},
      {"true", {[](const Subject& it) { return is_boolean(it, true); }}},
      {"false", {[](const Subject& it) { return is_boolean(it, false); }}},
      {"callable", {[](const Subject& it) {
         return it.value.as<Builtin>() != nullptr || it.value.as<const Macro*>() != nullptr || it.value.is_undefined();
       }}},
      {"iterable", {is_iterable}},
      {"sequence", {is_sequence}},
      {"lower", {has_case}},
      {"upper", {has_case}},
  };
  return table;
}

}  // namespace

std::optional<std::string> check_test(const std::string& name, const CallShape& call) {
  const auto found = tests().find(name);
  if (found == tests().end()) return "unknown test \"" + name + "\"";
  if (call.positional != found->second.arguments || !call.keywords.empty()) {
    return "the test \"" + name + "\" takes " + std::to_string(found->second.arguments) + " arguments";
  }
  return std::nullopt;
}

bool is_test(std::string_view name) { return tests().contains(name); }

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw RuntimeError{"unknown test \"" + name + "\""};
  return found->second.test(
      {name, value, arguments.positional.empty() ? nullptr : &arguments.positional[0], environment});
}

}  // namespace smartkv::jinja
