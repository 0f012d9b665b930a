#include <algorithm>
#include <cctype>
#include <ctime>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_strings.h"

namespace smartkv::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox limits it

[[noreturn]] void fail(const std::string& message) { throw RuntimeError{message}; }

std::string string_argument(const Arguments& arguments, size_t index, const char* name, const std::string& callee) {
  const Value* value = arguments.find(index, name);
  const std::string* text = value == nullptr ? nullptr : value->as<std::string>();
  if (text == nullptr) fail(callee + ": expected a string as " + name);
  return *text;
}

int64_t integer_argument(const Arguments& arguments, size_t index, const char* name, int64_t otherwise) {
  const Value* value = arguments.find(index, name);
  if (value == nullptr) return otherwise;
  if (!value->is_integer()) fail(std::string("expected an integer as ") + name);
  return value->integer();
}

Value string_list(std::vector<std::string> texts) {
  std::vector<Value> items;
  for (std::string& text : texts) items.push_back(std::move(text));
  return Value::list(std::move(items));
}

// str.startswith and endswith take a string or a tuple of them.
bool affix(const std::string& text, const Arguments& arguments, bool start) {
  const Value* value = arguments.find(0, "prefix");
  if (value == nullptr) fail("startswith: expected a string");
  const auto matches = [&](const Value& part) {
    const std::string* piece = part.as<std::string>();
    if (piece == nullptr) fail("startswith: expected a string or a tuple of strings");
    return start ? text.starts_with(*piece) : text.ends_with(*piece);
  };
  if (const List* list = value->as_list()) return std::any_of(list->items.begin(), list->items.end(), matches);
  return matches(*value);
}

Value string_method(const std::string& text, const std::string& name, const Arguments& arguments, const Environment& environment) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* chars = arguments.find(0, "chars");
    const bool given = chars != nullptr && !chars->is_none();
    const std::string set = given ? string_argument(arguments, 0, "chars", name) : "";
    return strip(text, given ? &set : nullptr, name != "rstrip", name != "lstrip");
  }
  if (name == "split") {
    const Value* separator = arguments.find(0, "sep");
    const int64_t most = integer_argument(arguments, 1, "maxsplit", -1);
    if (separator == nullptr || separator->is_none()) return string_list(split_spaces(text, most));
    const std::string at = string_argument(arguments, 0, "sep", name);
    if (at.empty()) fail("split: an empty separator");
    return string_list(split_at(text, at, most));
  }
  if (name == "splitlines") return string_list(split_lines(text));
  if (name == "startswith") return affix(text, arguments, true);
  if (name == "endswith") return affix(text, arguments, false);
  if (name == "replace") {
    return replace(text, string_argument(arguments, 0, "old", name), string_argument(arguments, 1, "new", name),
                   integer_argument(arguments, 2, "count", -1), environment);
  }
  if (name == "upper") return upper(text);
  if (name == "lower") return lower(text);
  if (name == "title") return title(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "find") return find_character(text, string_argument(arguments, 0, "sub", name));
  if (name == "count") return count(text, string_argument(arguments, 0, "sub", name));
  if (name == "isdigit") return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (name == "join") {
    const Value* items = arguments.find(0, "iterable");
    if (items == nullptr) fail("join: expected a list");
    std::string out;
    bool first = true;
    for (const Value& item : iterate(*items)) {
      const std::string* part = item.as<std::string>();
      if (part == nullptr) fail("join: expected strings, found \"" + item.type_name() + "\"");
      if (!first) out += text;
      out += *part;
      first = false;
      if (static_cast<int64_t>(out.size()) > environment.max_bytes) fail("a string grows beyond the limit");
    }
    return out;
  }
  fail("a string has no method \"" + name + "\"");
}

Value dict_method(const Dict& dict, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    const Value* otherwise = arguments.find(1, "default");
    const std::string* text = key == nullptr ? nullptr : key->as<std::string>();
    const Value* found = text == nullptr ? nullptr : dict.find(*text);
    return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") items.push_back(key);
    if (name == "values") items.push_back(value);
    if (name == "items") items.push_back(Value::list({key, value}, true));
  }
  if (name != "keys" && name != "values" && name != "items") fail("a dictionary has no method \"" + name + "\" here");
  return Value::list(std::move(items));
}

Value range(const Arguments& arguments) {
  std::vector<int64_t> parts;
  for (const Value& value : arguments.positional) {
    if (!value.is_integer()) fail("range: expected integers, found \"" + value.type_name() + "\"");
    parts.push_back(value.integer());
  }
  if (parts.empty() || parts.size() > 3) fail("range: expected 1 to 3 arguments");
  const int64_t start = parts.size() > 1 ? parts[0] : 0, stop = parts.size() > 1 ? parts[1] : parts[0], step = parts.size() > 2 ? parts[2] : 1;
  if (step == 0) fail("range: the step is 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) fail("range: more than " + std::to_string(kMaxRange) + " items");
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}

Value make_dict(const Arguments& arguments, bool is_namespace) {
  auto dict = std::make_shared<Dict>();
  dict->is_namespace = is_namespace;
  for (const Value& value : arguments.positional) {
    const Dict* source = value.as_dict();
    if (source == nullptr) fail("expected a dictionary, found \"" + value.type_name() + "\"");
    for (const auto& [key, held] : source->items) dict->set(key, held);
  }
  for (const auto& [key, value] : arguments.keywords) dict->set(key, value);
  return dict;
}

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

constexpr std::string_view kStringMethods[] = {"strip", "lstrip", "rstrip", "split", "splitlines", "startswith", "endswith", "replace", "upper",
                                               "lower", "title", "capitalize", "find", "count", "isdigit", "join"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kFunctions[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : keywords) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Arguments::check(std::string_view callee, std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) {
    fail(std::string(callee) + ": expected at most " + std::to_string(names.size()) + " arguments, found " + std::to_string(positional.size()));
  }
  for (const auto& [key, value] : keywords) {
    if (std::find(names.begin(), names.end(), key) == names.end()) fail(std::string(callee) + ": unknown argument \"" + key + "\"");
  }
}

bool is_method(std::string_view name) { return among(kStringMethods, name) || among(kDictMethods, name); }
bool is_function(std::string_view name) { return among(kFunctions, name); }

Value call_method(const Value& object, const std::string& name, const Arguments& arguments, const Environment& environment) {
  if (const Undefined* undefined = object.as<Undefined>()) fail("\"" + undefined->name + "\" is undefined");
  if (const std::string* text = object.as<std::string>()) return string_method(*text, name, arguments, environment);
  if (const Dict* dict = object.as_dict()) return dict_method(*dict, name, arguments);
  if (const List* list = object.as_list(); list != nullptr && name == "count") {
    const Value* item = arguments.find(0, "value");
    if (item == nullptr) fail("count: expected a value");
    return std::count_if(list->items.begin(), list->items.end(), [&](const Value& other) { return equal(*item, other); });
  }
  fail("\"" + object.type_name() + "\" has no method \"" + name + "\"");
}

Value call_function(const std::string& name, const Arguments& arguments, const Environment& environment) {
  if (name == "range") return range(arguments);
  if (name == "dict" || name == "namespace") return make_dict(arguments, name == "namespace");
  if (name == "raise_exception") {
    const Value* message = arguments.find(0, "message");
    fail(message == nullptr ? "raise_exception" : to_text(*message));
  }
  const std::string format = string_argument(arguments, 0, "format", name);  // strftime_now
  const std::tm time = environment.now ? environment.now() : local_now();
  char buffer[512];
  if (format.empty()) return "";
  const size_t length = std::strftime(buffer, sizeof buffer, format.c_str(), &time);
  if (length == 0) fail("strftime_now: the result is empty or too long");
  return std::string(buffer, length);
}

}  // namespace smartkv::jinja
