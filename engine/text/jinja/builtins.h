// Filters, tests, methods, functions and operators of the template interpreter. They throw RuntimeError for faults in
// the template.
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

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // Returns the positional argument `index`, or else the keyword argument `name`. Returns nullptr if neither was given.
  const Value* find(size_t index, std::string_view name) const;
};

// The limits of one rendering, and its clock.
struct Environment {
  int64_t steps_left;
  int64_t max_bytes;             // Limit of the bytes of one string, and of the output.
  std::function<std::tm()> now;  // Time for strftime_now. If it is null, that uses the current local time.

  void spend(int64_t steps);                      // Throws RuntimeError if fewer steps are left.
  void check_bytes(size_t bytes) const;           // Throws RuntimeError if `bytes` exceeds max_bytes.
  std::string text_of(const Value& value) const;  // str(). Throws RuntimeError if the text exceeds max_bytes.
};

// How a template calls a filter, test, method or function.
struct CallShape {
  size_t positional = 0;  // The number of positional arguments.
  std::vector<std::string> keywords;
  // For each positional argument: its value if it is a string literal.
  std::vector<std::optional<std::string>> constants;
};
// The checks run when a template is parsed. They return a message ("unknown filter ..."), or nullopt if the call is
// valid.
std::optional<std::string> check_filter(const std::string& name, const CallShape& call);
std::optional<std::string> check_test(const std::string& name, const CallShape& call);
// Accepts methods that the sandbox forbids. As in jinja2, calling one is a fault at run time.
std::optional<std::string> check_method(const std::string& name, const CallShape& call);
std::optional<std::string> check_function(const std::string& name, const CallShape& call);
bool is_function(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_dict_method(std::string_view name);            // d.items is Python's method even if d has the key "items".
bool is_forbidden_dict_method(std::string_view name);  // Changes the dictionary, so it is undefined in the sandbox.
bool is_forbidden_list_method(std::string_view name);  // The same for lists.

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment);
Value call_method(const Value& object, const std::string& name, const Arguments& arguments, Environment& environment);
Value call_function(const std::string& name, const Arguments& arguments, Environment& environment);

// Returns the text for use in markup: unchanged if it is markup, else escaped. REQUIRES: `text` is a string or markup.
std::string escaped(const Value& text);
// Returns `text` as markup if `original` is markup, else as a string.
Value like(const Value& original, std::string text);
// Python's operators. They throw RuntimeError where Python raises an exception.
Value negate(const Value& value);
Value binary(const std::string& op, const Value& left, const Value& right, Environment& environment);
bool contains(const Value& container, const Value& item, Environment& environment);
void refuse_undefined(const Value& value);  // Throws RuntimeError if it is undefined.
// Compares as compare() does, but throws RuntimeError if the values are undefined or cannot be ordered.
int order_of(const Value& left, const Value& right);
// Returns the items that a for loop runs over. A dictionary gives its keys, a string its characters. Empties an
// iterator.
std::vector<Value> iterate(const Value& value, Environment& environment);
Value get_item(const Value& object, const Value& key);              // object[key], or else object.key
Value get_attribute(const Value& object, const std::string& name);  // object.name, or else object["name"]
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Environment& environment);

}  // namespace smartkv::jinja
