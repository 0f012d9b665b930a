#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_strings.h"

namespace smartkv::jinja {
namespace {

[[noreturn]] void fail(const std::string& message) { throw RuntimeError{message}; }

struct Call {
  const std::string& name;
  const Value& value;
  const Arguments& arguments;
  const Environment& environment;

  const Value* argument(size_t index, std::string_view keyword) const { return arguments.find(index, keyword); }
  std::string text_argument(size_t index, std::string_view keyword, const std::string& otherwise) const {
    const Value* found = argument(index, keyword);
    return found == nullptr ? otherwise : to_text(*found);
  }
  bool flag(size_t index, std::string_view keyword, bool otherwise) const {
    const Value* found = argument(index, keyword);
    return found == nullptr ? otherwise : found->truthy();
  }
  void defined() const {
    if (const Undefined* undefined = value.as<Undefined>()) fail("\"" + undefined->name + "\" is undefined");
  }
};

using Filter = Value (*)(const Call&);

// The member that a dotted path names: "function.name", "0.text".
Value attribute_of(const Value& value, const std::string& path) {
  Value current = value;
  for (const std::string& part : split_at(path, ".", -1)) {
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    current = get_item(current, number ? Value(index) : Value(part));
  }
  return current;
}

Value length_filter(const Call& call) {
  if (const std::string* text = call.value.as<std::string>()) return length(*text);
  if (const List* list = call.value.as_list()) return list->items.size();
  if (const Dict* dict = call.value.as_dict()) return dict->items.size();
  if (call.value.is_undefined()) return 0;
  fail("\"" + call.value.type_name() + "\" has no length");
}

Value tojson_filter(const Call& call) {
  const Value* indent = call.argument(0, "indent");
  try {
    return to_json(call.value, indent != nullptr && indent->is_integer() ? std::clamp<int64_t>(indent->integer(), 0, 64) : -1, call.flag(9, "sort_keys", false));
  } catch (const TypeMismatch&) {
    fail("tojson: \"" + call.value.type_name() + "\" is not JSON");
  }
}

Value default_filter(const Call& call) {
  const Value* otherwise = call.argument(0, "default_value");
  const bool use = call.value.is_undefined() || (call.flag(1, "boolean", false) && !call.value.truthy());
  if (!use) return call.value;
  return otherwise == nullptr ? Value("") : *otherwise;
}

Value join_filter(const Call& call) {
  const std::string separator = call.text_argument(0, "d", "");
  const Value* attribute = call.argument(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : iterate(call.value)) {
    if (!first) out += separator;
    out += to_text(attribute == nullptr ? item : attribute_of(item, to_text(*attribute)));
    first = false;
    if (static_cast<int64_t>(out.size()) > call.environment.max_bytes) fail("a string grows beyond the limit");
  }
  return out;
}

Value int_filter(const Call& call) {
  const Value* otherwise = call.argument(0, "default");
  const Value fallback = otherwise == nullptr ? Value(0) : *otherwise;
  if (call.value.is_integer()) return call.value.integer();
  if (const double* x = call.value.as<double>()) return std::isfinite(*x) && std::abs(*x) < 9e18 ? Value(static_cast<int64_t>(*x)) : fallback;
  const std::string* text = call.value.as<std::string>();
  if (text == nullptr) return fallback;
  const std::string trimmed = strip(*text, nullptr, true, true);
  const char* begin = trimmed.data() + (trimmed.starts_with('+') ? 1 : 0);
  int64_t number = 0;
  const auto parsed = std::from_chars(begin, trimmed.data() + trimmed.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == trimmed.data() + trimmed.size() && !trimmed.empty()) return number;
  char* end;
  const double x = std::strtod(trimmed.c_str(), &end);
  return !trimmed.empty() && *end == '\0' && std::isfinite(x) && std::abs(x) < 9e18 ? Value(static_cast<int64_t>(x)) : fallback;
}

Value float_filter(const Call& call) {
  const Value* otherwise = call.argument(0, "default");
  const Value fallback = otherwise == nullptr ? Value(0.0) : *otherwise;
  if (call.value.is_number()) return call.value.number();
  const std::string* text = call.value.as<std::string>();
  if (text == nullptr) return fallback;
  const std::string trimmed = strip(*text, nullptr, true, true);
  char* end;
  const double x = std::strtod(trimmed.c_str(), &end);
  return !trimmed.empty() && *end == '\0' ? Value(x) : fallback;
}

Value round_filter(const Call& call) {
  if (!call.value.is_number()) fail("round: expected a number, found \"" + call.value.type_name() + "\"");
  const Value* precision = call.argument(0, "precision");
  const std::string method = call.text_argument(1, "method", "common");
  const double factor = std::pow(10.0, precision == nullptr ? 0.0 : std::clamp(precision->number(), -300.0, 300.0)), x = call.value.number() * factor;
  if (method == "ceil") return std::ceil(x) / factor;
  if (method == "floor") return std::floor(x) / factor;
  if (method != "common") fail("round: expected common, ceil or floor, found \"" + method + "\"");
  return std::nearbyint(x) / factor;
}

Value abs_filter(const Call& call) {
  if (call.value.is_integer()) return call.value.integer() < 0 ? binary("-", 0, call.value, call.environment) : Value(call.value.integer());
  if (!call.value.is_number()) fail("abs: expected a number, found \"" + call.value.type_name() + "\"");
  return std::abs(call.value.number());
}

Value lowered(const Value& value, bool case_sensitive) {
  const std::string* text = value.as<std::string>();
  return text == nullptr || case_sensitive ? value : Value(lower(*text));
}

int ordered(const Value& a, const Value& b) {
  try {
    return compare(a, b);
  } catch (const TypeMismatch&) {
    fail("\"" + a.type_name() + "\" and \"" + b.type_name() + "\" have no order");
  }
}

Value sort_filter(const Call& call) {
  const Value* attribute = call.argument(2, "attribute");
  const bool reverse = call.flag(0, "reverse", false), sensitive = call.flag(1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(call.value)) {
    const Value key = attribute == nullptr ? item : attribute_of(item, to_text(*attribute));
    keyed.emplace_back(lowered(key, sensitive), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return reverse ? ordered(b.first, a.first) < 0 : ordered(a.first, b.first) < 0; });
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value extreme(const Call& call, int sign) {
  const std::vector<Value> items = iterate(call.value);
  if (items.empty()) return Undefined{"of an empty sequence"};
  const Value* best = &items[0];
  for (const Value& item : items) {
    if (ordered(lowered(item, false), lowered(*best, false)) * sign > 0) best = &item;
  }
  return *best;
}

Value sum_filter(const Call& call) {
  const Value* attribute = call.argument(0, "attribute");
  const Value* start = call.argument(1, "start");
  Value total = start == nullptr ? Value(0) : *start;
  for (const Value& item : iterate(call.value)) {
    total = binary("+", total, attribute == nullptr ? item : attribute_of(item, to_text(*attribute)), call.environment);
  }
  return total;
}

Value dictsort_filter(const Call& call) {
  const Dict* dict = call.value.as_dict();
  if (dict == nullptr) fail("dictsort: expected a dictionary, found \"" + call.value.type_name() + "\"");
  const bool sensitive = call.flag(0, "case_sensitive", false), reverse = call.flag(2, "reverse", false);
  const bool by_value = call.text_argument(1, "by", "key") == "value";
  auto items = dict->items;
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    const Value x = by_value ? lowered(a.second, sensitive) : lowered(a.first, sensitive), y = by_value ? lowered(b.second, sensitive) : lowered(b.first, sensitive);
    return reverse ? ordered(y, x) < 0 : ordered(x, y) < 0;
  });
  std::vector<Value> pairs;
  for (auto& [key, value] : items) pairs.push_back(Value::list({key, value}, true));
  return Value::list(std::move(pairs));
}

Value unique_filter(const Call& call) {
  std::vector<Value> kept, keys;
  for (const Value& item : iterate(call.value)) {
    const Value key = lowered(item, call.flag(0, "case_sensitive", false));
    if (std::none_of(keys.begin(), keys.end(), [&](const Value& other) { return equal(key, other); })) {
      keys.push_back(key);
      kept.push_back(item);
    }
  }
  return Value::list(std::move(kept));
}

Value indent_filter(const Call& call) {
  const Value* width = call.argument(0, "width");
  const std::string by = width != nullptr && width->as<std::string>() ? *width->as<std::string>()
                                                                     : std::string(static_cast<size_t>(width != nullptr && width->is_integer() ? std::clamp<int64_t>(width->integer(), 0, 256) : 4), ' ');
  const bool first = call.flag(1, "first", false), blank = call.flag(2, "blank", false);
  std::string out;
  const std::vector<std::string> lines = split_at(to_text(call.value), "\n", -1);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if ((i > 0 || first) && (blank || !lines[i].empty())) out += by;
    out += lines[i];
    if (static_cast<int64_t>(out.size()) > call.environment.max_bytes) fail("a string grows beyond the limit");
  }
  return out;
}

Value items_filter(const Call& call) {
  std::vector<Value> pairs;
  if (call.value.is_undefined()) return Value::list({});
  const Dict* dict = call.value.as_dict();
  if (dict == nullptr) fail("items: expected a dictionary, found \"" + call.value.type_name() + "\"");
  for (const auto& [key, value] : dict->items) pairs.push_back(Value::list({key, value}, true));
  return Value::list(std::move(pairs));
}

// The arguments from `first` on, for a filter or test that is named by an argument.
Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments rest;
  for (size_t i = first; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}

Value map_filter(const Call& call) {
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [key, value] : call.arguments.keywords) {
    if (key == "attribute") attribute = &value;
    if (key == "default") otherwise = &value;
  }
  std::vector<Value> items;
  for (const Value& item : iterate(call.value)) {
    if (attribute != nullptr) {
      const Value found = attribute_of(item, to_text(*attribute));
      items.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : found);
    } else {
      const std::string filter = call.text_argument(0, "filter", "");
      if (!is_filter(filter)) fail("map: unknown filter \"" + filter + "\"");
      items.push_back(apply_filter(filter, item, rest_of(call.arguments, 1), call.environment));
    }
  }
  return Value::list(std::move(items));
}

// select, reject, selectattr, rejectattr.
Value choose(const Call& call) {
  const bool by_attribute = call.name.ends_with("attr"), keep = call.name.starts_with("select");
  const size_t at = by_attribute ? 1 : 0;
  const bool tested = call.arguments.positional.size() > at;
  const std::string test = tested ? to_text(call.arguments.positional[at]) : "";
  if (tested && !is_test(test)) fail(call.name + ": unknown test \"" + test + "\"");
  std::vector<Value> items;
  for (const Value& item : iterate(call.value)) {
    const Value subject = by_attribute ? attribute_of(item, call.text_argument(0, "attribute", "")) : item;
    const bool holds = tested ? apply_test(test, subject, rest_of(call.arguments, at + 1)) : subject.truthy();
    if (holds == keep) items.push_back(item);
  }
  return Value::list(std::move(items));
}

Value text_filter(const Call& call) {
  const std::string text = to_text(call.value);
  if (call.name == "upper") return upper(text);
  if (call.name == "lower") return lower(text);
  if (call.name == "title") return title(text);
  if (call.name == "capitalize") return capitalize(text);
  if (call.name == "trim") {
    const Value* set = call.argument(0, "chars");
    const std::string chars = set == nullptr ? "" : to_text(*set);
    return strip(text, set == nullptr ? nullptr : &chars, true, true);
  }
  if (call.name == "replace") {
    const Value* most = call.argument(2, "count");
    return replace(text, call.text_argument(0, "old", ""), call.text_argument(1, "new", ""), most != nullptr && most->is_integer() ? most->integer() : -1, call.environment);
  }
  return text;  // string, safe
}

Value sequence_filter(const Call& call) {
  if (const std::string* text = call.value.as<std::string>(); text != nullptr && call.name == "reverse") {
    std::string out;
    std::vector<Value> characters = iterate(call.value);
    for (auto it = characters.rbegin(); it != characters.rend(); ++it) out += *it->as<std::string>();
    return out;
  }
  std::vector<Value> items = iterate(call.value);
  if (call.name == "first") return items.empty() ? Value(Undefined{"first of an empty sequence"}) : items.front();
  if (call.name == "last") return items.empty() ? Value(Undefined{"last of an empty sequence"}) : items.back();
  if (call.name == "reverse") std::reverse(items.begin(), items.end());
  return Value::list(std::move(items));
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> table = {
      {"abs", abs_filter}, {"capitalize", text_filter}, {"count", length_filter}, {"d", default_filter}, {"default", default_filter},
      {"dictsort", dictsort_filter}, {"first", sequence_filter}, {"float", float_filter}, {"indent", indent_filter}, {"int", int_filter},
      {"items", items_filter}, {"join", join_filter}, {"last", sequence_filter}, {"length", length_filter}, {"list", sequence_filter},
      {"lower", text_filter}, {"map", map_filter}, {"max", [](const Call& call) { return extreme(call, 1); }},
      {"min", [](const Call& call) { return extreme(call, -1); }}, {"reject", choose}, {"rejectattr", choose}, {"replace", text_filter},
      {"reverse", sequence_filter}, {"round", round_filter}, {"safe", text_filter}, {"select", choose}, {"selectattr", choose},
      {"sort", sort_filter}, {"string", text_filter}, {"sum", sum_filter}, {"title", text_filter}, {"tojson", tojson_filter},
      {"trim", text_filter}, {"unique", unique_filter}, {"upper", text_filter}};
  return table;
}

bool divides(const Value& value, const Value& by) {
  if (!value.is_integer() || !by.is_integer() || by.integer() == 0) fail("divisibleby: expected integers, and not 0");
  return by.integer() == -1 || value.integer() % by.integer() == 0;
}

constexpr std::string_view kTests[] = {"==", "!=", "<", "<=", ">", ">=", "boolean", "defined", "divisibleby", "eq", "equalto", "even", "false", "float",
                                       "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan", "lower", "lt", "mapping", "ne", "none",
                                       "number", "odd", "sameas", "sequence", "string", "true", "undefined", "upper"};

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }
bool is_test(std::string_view name) { return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests); }

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, const Environment& environment) {
  return filters().find(name)->second({name, value, arguments, environment});
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.as<std::string>() != nullptr;
  if (name == "mapping") return value.as_dict() != nullptr && !value.as_dict()->is_namespace;
  if (name == "number") return value.is_number();
  if (name == "integer") return value.as<int64_t>() != nullptr;
  if (name == "float") return value.as<double>() != nullptr;
  if (name == "boolean") return value.as<bool>() != nullptr;
  if (name == "true" || name == "false") return value.as<bool>() != nullptr && *value.as<bool>() == (name == "true");
  if (name == "iterable" || name == "sequence") {
    return value.as_list() != nullptr || value.as<std::string>() != nullptr || (value.as_dict() != nullptr && !value.as_dict()->is_namespace) || value.is_undefined();
  }
  if (name == "odd" || name == "even") {
    if (!value.is_integer()) fail(name + ": expected an integer, found \"" + value.type_name() + "\"");
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  if (name == "lower" || name == "upper") {
    const std::string text = to_text(value), low = lower(text), high = upper(text);
    return low != high && text == (name == "lower" ? low : high);
  }
  const Value* other = arguments.find(0, "other");
  if (other == nullptr) fail("the test " + name + " takes an argument");
  if (name == "==" || name == "eq" || name == "equalto") return equal(value, *other);
  if (name == "!=" || name == "ne") return !equal(value, *other);
  if (name == "in") return contains(*other, value);
  if (name == "divisibleby") return divides(value, *other);
  if (name == "sameas") return value.type_name() == other->type_name() && equal(value, *other);
  const int order = ordered(value, *other);
  if (name == "<" || name == "lt" || name == "lessthan") return order < 0;
  if (name == "<=" || name == "le") return order <= 0;
  if (name == ">" || name == "gt" || name == "greaterthan") return order > 0;
  return order >= 0;
}

}  // namespace smartkv::jinja
