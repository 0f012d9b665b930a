// Filters, tests, methods and functions of the template interpreter.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace smartkv::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // Argument `index`, or the keyword `name`; nullptr: not given.
  const Value* find(size_t index, std::string_view name) const;
};

// What one rendering may use, and has left.
struct Environment {
  int64_t steps_left;
  int64_t max_bytes;             // of one string, and of the output
  std::function<std::tm()> now;  // of strftime_now

  void spend(int64_t steps);                      // RuntimeError when none are left
  void check_bytes(size_t bytes) const;           // RuntimeError beyond max_bytes
  std::string text_of(const Value& value) const;  // str(), bounded
};

// How a filter, test, method or function is called in the template. The checks below run at load; they return what is
// wrong ("unknown filter ..."), or nothing.
struct CallShape {
  size_t positional = 0;
  std::vector<std::string> keywords;
  std::vector<std::optional<std::string>> constants;  // positional arguments that are string literals
};
std::optional<std::string> check_filter(const std::string& name, const CallShape& call);
std::optional<std::string> check_test(const std::string& name, const CallShape& call);
// Methods that the sandbox forbids pass: calling one is a fault at run time, as in jinja2.
std::optional<std::string> check_method(const std::string& name, const CallShape& call);
std::optional<std::string> check_function(const std::string& name, const CallShape& call);
bool is_function(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_dict_method(std::string_view name);            // d.items is Python's method even where "items" is a key
bool is_forbidden_dict_method(std::string_view name);  // changes the dictionary: undefined in the sandbox
bool is_forbidden_list_method(std::string_view name);  // the same of lists

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments, Environment& environment);
Value call_function(const std::string& name, const Arguments& arguments, Environment& environment);

// What a string or markup is in markup: itself, or escaped.
std::string escaped(const Value& text);
// `text`, as markup where `original` is.
Value like(const Value& original, std::string text);
// Python's operators; RuntimeError where Python raises.
Value negate(const Value& value);
Value binary(const std::string& op, const Value& left, const Value& right, Environment& environment);
bool contains(const Value& container, const Value& item, Environment& environment);
[[noreturn]] void fail_undefined(const Undefined& undefined);
// What a for loop runs over; a dictionary gives its keys, a string its characters. Empties an iterator.
std::vector<Value> iterate(const Value& value, Environment& environment);
Value get_item(const Value& object, const Value& key);              // object[key], else object.key
Value get_attribute(const Value& object, const std::string& name);  // object.name, else object["name"]
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Environment& environment);

}  // namespace smartkv::jinja
