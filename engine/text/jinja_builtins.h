// Filters, tests, methods and functions of the template interpreter.
#pragma once

#include <cstdint>
#include <functional>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_value.h"

namespace smartkv::jinja {

// A fault at run time; the evaluator adds the line.
struct RuntimeError {
  std::string message;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // Argument `index`, or the keyword `name`; nullptr: not given.
  const Value* find(size_t index, std::string_view name) const;
  // RuntimeError on more positional arguments, or other keywords.
  void check(std::string_view callee, std::initializer_list<std::string_view> names) const;
};

struct Environment {
  int64_t max_bytes;                  // of one string
  std::function<std::tm()> now;       // of strftime_now
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);    // of strings, lists or dictionaries
bool is_function(std::string_view name);

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, const Environment& environment);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments, const Environment& environment);
Value call_function(const std::string& name, const Arguments& arguments, const Environment& environment);

// Python's operators; RuntimeError where Python raises.
Value binary(const std::string& op, const Value& left, const Value& right, const Environment& environment);
bool contains(const Value& container, const Value& item);
// What a for loop runs over; a dictionary gives its keys, a string its characters.
std::vector<Value> iterate(const Value& value);
Value get_item(const Value& object, const Value& key);
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace smartkv::jinja
