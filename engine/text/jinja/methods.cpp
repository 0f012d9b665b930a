#include <algorithm>
#include <map>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/strings.h"

namespace smartkv::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // the limit of jinja2's sandbox

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

// Returns a list of `texts`, which are parts of `object` and become markup if it is.
Value string_list(const Value& object, std::vector<std::string> texts) {
  std::vector<Value> items;
  for (std::string& text : texts) items.push_back(like(object, std::move(text)));
  return Value::list(std::move(items));
}

// For methods that take (sub, start, end): returns text[start:end] and the index of its first character. Returns
// nullopt if `start` is after `end`, where not even an empty text is found.
std::optional<std::pair<std::string, int64_t>> searched(const std::string& text, const Arguments& arguments) {
  if (arguments.positional.size() < 2) return std::pair(text, int64_t{0});
  const int64_t n = length(text);
  const auto bound = [&](size_t index, const char* name, int64_t otherwise) {
    const Value* value = arguments.find(index, name);
    const int64_t at =
        value == nullptr || value->is_none() ? otherwise : integer_argument(arguments, index, name, otherwise);
    return std::max<int64_t>(0, at < 0 ? at + n : at);
  };
  const int64_t first = bound(1, "start", 0), end = std::min(n, bound(2, "end", n));
  if (first > end) return std::nullopt;
  return std::pair(substring(text, first, end, 1), first);
}

// str.startswith and str.endswith, which take a string or a tuple of strings.
bool affix(const std::string& text, const std::string& name, const Arguments& arguments) {
  const auto matches = [&](const Value& part) {
    const std::string* piece = part.as<std::string>();
    if (piece == nullptr) fail(name + ": expected a string or a tuple of strings");
    return name == "startswith" ? text.starts_with(*piece) : text.ends_with(*piece);
  };
  const Value& value = arguments.positional[0];
  const List* list = value.as_sequence();
  if (list != nullptr && list->kind == List::Kind::kTuple)
    return std::any_of(list->items.begin(), list->items.end(), matches);
  return matches(value);
}

Value string_method(const Value& object, const std::string& name, const Arguments& arguments,
                    Environment& environment) {
  const std::string& text = *object.as<std::string>();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* chars = arguments.find(0, "chars");
    const bool given = chars != nullptr && !chars->is_none();
    const std::string set = given ? string_argument(arguments, 0, "chars", name) : "";
    return like(object, strip(text, given ? &set : nullptr, name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") {
    const Value* separator = arguments.find(0, "sep");
    const int64_t most = integer_argument(arguments, 1, "maxsplit", -1);
    if (separator == nullptr || separator->is_none()) {
      if (name == "rsplit" && most >= 0) fail("rsplit: a maximum needs a separator");
      return string_list(object, split_spaces(text, most));
    }
    const std::string at = string_argument(arguments, 0, "sep", name);
    if (at.empty()) fail(name + ": an empty separator");
    return string_list(object, name == "split" ? split_at(text, at, most) : split_at_from_end(text, at, most));
  }
  if (name == "splitlines") return string_list(object, split_lines(text));
  if (name == "startswith" || name == "endswith") return affix(text, name, arguments);
  if (name == "removeprefix" || name == "removesuffix") {
    const bool prefix = name == "removeprefix";
    const std::string part = string_argument(arguments, 0, "affix", name);
    if (!(prefix ? text.starts_with(part) : text.ends_with(part))) return object;
    return like(object, prefix ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "replace") {
    const std::string with = string_argument(arguments, 1, "new", name);
    return like(object, replace(text, string_argument(arguments, 0, "old", name),
                                object.is_markup() ? escaped(*arguments.find(1, "new")) : with,
                                integer_argument(arguments, 2, "count", -1), environment));
  }
  if (name == "upper") return like(object, upper(text));
  if (name == "lower") return like(object, lower(text));
  if (name == "title") return like(object, title(text));
  if (name == "capitalize") return like(object, capitalize(text));
  if (name == "count" || name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    const std::string sought = string_argument(arguments, 0, "sub", name);
    const auto part = searched(text, arguments);
    if (name == "count") return part ? count(part->first, sought) : 0;
    const int64_t at = !part                   ? -1
                       : name.starts_with('r') ? find_last_character(part->first, sought)
                                               : find_character(part->first, sought);
    if (at < 0 && name.ends_with("index")) fail(name + ": the string does not contain \"" + sought + "\"");
    return at < 0 ? at : part->second + at;
  }
  if (name == "isdigit")
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (name == "join") {
    const Value* items = arguments.find(0, "iterable");
    if (items == nullptr) fail("join: expected a list");
    std::string out;
    bool first = true;
    for (const Value& item : iterate(*items, environment)) {
      const std::string* part = item.as<std::string>();
      if (part == nullptr) fail("join: expected strings, found \"" + item.type_name() + "\"");
      if (!first) out += text;
      out += object.is_markup() ? escaped(item) : *part;
      first = false;
      environment.check_bytes(out.size());
    }
    return like(object, std::move(out));
  }
  fail("a string has no method \"" + name + "\"");
}

Value dict_method(const Dict& dict, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    const Value* otherwise = arguments.find(1, "default");
    const Value* found = key == nullptr ? nullptr : dict.find_key(*key);
    return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
  }
  const auto kind = name == "keys" ? List::Kind::kKeys : name == "values" ? List::Kind::kValues : List::Kind::kItems;
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    items.push_back(kind == List::Kind::kKeys     ? Value(key)
                    : kind == List::Kind::kValues ? value
                                                  : Value::list({key, value}, List::Kind::kTuple));
  }
  return Value::list(std::move(items), kind);
}

Value range(const Arguments& arguments, Environment& environment) {
  std::vector<int64_t> parts;
  for (const Value& value : arguments.positional) {
    if (!value.is_integer()) fail("range: expected integers, found \"" + value.type_name() + "\"");
    parts.push_back(value.integer());
  }
  if (parts.empty() || parts.size() > 3) fail("range: expected 1 to 3 arguments");
  const int64_t start = parts.size() > 1 ? parts[0] : 0, stop = parts.size() > 1 ? parts[1] : parts[0],
                step = parts.size() > 2 ? parts[2] : 1;
  if (step == 0) fail("range: the step is 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange)
      fail("range: more than " + std::to_string(kMaxRange) + " items");
    environment.spend(1);
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}

Value make_dict(const Arguments& arguments, Dict::Kind kind) {
  Dict merged;
  if (!arguments.positional.empty()) {
    const Dict* source = arguments.positional[0].as_mapping();
    if (source == nullptr) fail("expected a dictionary, found \"" + arguments.positional[0].type_name() + "\"");
    merged.items = source->items;
  }
  for (const auto& [key, value] : arguments.keywords) merged.set(key, value);
  for (const auto& [key, value] : merged.items) {
    if (kind == Dict::Kind::kNamespace && value.extent().is_shared) fail("a namespace cannot hold a namespace");
  }
  return Value::dict(std::move(merged.items), kind);
}

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

// The numbers of arguments that a method takes. Keywords are allowed only if `keywords` names them.
struct MethodRow {
  size_t least = 0, most = 0;
  std::vector<std::string_view> keywords = {};
};
using MethodTable = std::map<std::string, MethodRow, std::less<>>;

const MethodTable& string_methods() {
  static const std::vector<std::string_view> kSplit = {"sep", "maxsplit"};
  static const MethodTable table = {{"capitalize", {}},
                                    {"count", {1, 3}},
                                    {"endswith", {1, 1}},
                                    {"find", {1, 3}},
                                    {"index", {1, 3}},
                                    {"isdigit", {}},
                                    {"join", {1, 1}},
                                    {"lower", {}},
                                    {"lstrip", {0, 1}},
                                    {"removeprefix", {1, 1}},
                                    {"removesuffix", {1, 1}},
                                    {"replace", {2, 3}},
                                    {"rfind", {1, 3}},
                                    {"rindex", {1, 3}},
                                    {"rsplit", {0, 2, kSplit}},
                                    {"rstrip", {0, 1}},
                                    {"split", {0, 2, kSplit}},
                                    {"splitlines", {}},
                                    {"startswith", {1, 1}},
                                    {"strip", {0, 1}},
                                    {"title", {}},
                                    {"upper", {}}};
  return table;
}
const MethodTable& dict_methods() {
  static const MethodTable table = {{"get", {1, 2}}, {"items", {}}, {"keys", {}}, {"values", {}}};
  return table;
}
const MethodTable& list_methods() {
  static const MethodTable table = {{"count", {1, 1}}, {"index", {1, 1}}};
  return table;
}
const MethodTable& functions() {
  static const MethodTable table = {{"range", {1, 3}},
                                    {"dict", {0, 1}},
                                    {"namespace", {0, 1}},
                                    {"raise_exception", {1, 1, {"message"}}},
                                    {"strftime_now", {1, 1, {"format"}}}};
  return table;
}

std::optional<std::string> check_row(const MethodRow& row, const std::string& callee, const CallShape& call,
                                     bool any_keywords) {
  for (const std::string& keyword : call.keywords) {
    if (!any_keywords && std::find(row.keywords.begin(), row.keywords.end(), keyword) == row.keywords.end()) {
      return callee + " has no argument \"" + keyword + "\"";
    }
  }
  const size_t given = call.positional + (any_keywords ? 0 : call.keywords.size());
  if (given >= row.least && given <= row.most) return std::nullopt;
  const std::string most = row.most == row.least ? "" : " to " + std::to_string(row.most);
  return callee + " takes " + std::to_string(row.least) + most + " arguments, found " + std::to_string(given);
}

}  // namespace

void Environment::spend(int64_t steps) {
  if (steps > steps_left) fail("the template runs for more steps than allowed");
  steps_left -= steps;
}
void Environment::check_bytes(size_t bytes) const {
  if (static_cast<int64_t>(bytes) > max_bytes)
    fail("a string grows beyond the limit of " + std::to_string(max_bytes) + " bytes");
}
std::string Environment::text_of(const Value& value) const { return to_text(value, max_bytes); }

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : keywords) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool is_function(std::string_view name) { return functions().contains(name); }
bool is_dict_method(std::string_view name) {
  return name == "copy" || name == "fromkeys" || dict_methods().contains(name);
}
bool is_forbidden_dict_method(std::string_view name) {
  return name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" || name == "update";
}

bool is_forbidden_list_method(std::string_view name) {
  return name == "append" || name == "clear" || name == "pop" || name == "reverse" || name == "insert" ||
         name == "sort" || name == "extend" || name == "remove";
}

std::optional<std::string> check_function(const std::string& name, const CallShape& call) {
  const auto found = functions().find(name);
  if (found == functions().end()) return "unknown function \"" + name + "\"";
  return check_row(found->second, "the function \"" + name + "\"", call, name == "dict" || name == "namespace");
}

// The type of the object is not known yet, so the call is valid if the method of one type accepts it.
std::optional<std::string> check_method(const std::string& name, const CallShape& call) {
  if (is_forbidden_dict_method(name) || is_forbidden_list_method(name)) return std::nullopt;
  std::optional<std::string> fault = "unknown method \"" + name + "\"";
  for (const MethodTable* table : {&string_methods(), &dict_methods(), &list_methods()}) {
    const auto found = table->find(name);
    if (found == table->end()) continue;
    fault = check_row(found->second, "the method \"" + name + "\"", call, false);
    if (!fault) break;
  }
  return fault;
}

Value call_method(const Value& object, const std::string& name, const Arguments& arguments, Environment& environment) {
  refuse_undefined(object);
  environment.spend(object.steps());
  const std::string* text = object.as<std::string>();
  if (text != nullptr && string_methods().contains(name)) return string_method(object, name, arguments, environment);
  if (object.as_mapping() != nullptr && dict_methods().contains(name))
    return dict_method(*object.as_mapping(), name, arguments);
  if (const List* list = object.as_sequence(); list != nullptr && list_methods().contains(name)) {
    environment.spend(object.extent().weight / 8);
    const auto is_item = [&](const Value& other) { return equal(arguments.positional[0], other); };
    if (name == "count") return std::count_if(list->items.begin(), list->items.end(), is_item);
    const auto found = std::find_if(list->items.begin(), list->items.end(), is_item);
    if (found == list->items.end()) fail("index: the value is not in the list");
    return found - list->items.begin();
  }
  fail("\"" + object.type_name() + "\" has no method \"" + name + "\"");
}

Value call_function(const std::string& name, const Arguments& arguments, Environment& environment) {
  if (name == "range") return range(arguments, environment);
  if (name == "dict" || name == "namespace")
    return make_dict(arguments, name == "dict" ? Dict::Kind::kDict : Dict::Kind::kNamespace);
  if (name == "raise_exception") {
    const Value* message = arguments.find(0, "message");
    fail(environment.text_of(*message));
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
