#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/strings.h"

namespace smartkv::jinja {
namespace {

// A call of a filter.
struct Call {
  const std::string& name;
  const Value& value;
  const Arguments& arguments;
  Environment& environment;

  const Value* argument(size_t index, std::string_view keyword) const { return arguments.find(index, keyword); }
  std::string text_argument(size_t index, std::string_view keyword, const std::string& otherwise) const {
    const Value* found = argument(index, keyword);
    return found == nullptr ? otherwise : environment.text_of(*found);
  }
  int64_t integer_argument(size_t index, std::string_view keyword, int64_t otherwise) const {
    const Value* found = argument(index, keyword);
    if (found == nullptr || found->is_none()) return otherwise;
    if (!found->is_integer()) fail(name + ": expected an integer as " + std::string(keyword));
    return found->integer();
  }
  bool flag(size_t index, std::string_view keyword, bool otherwise) const {
    const Value* found = argument(index, keyword);
    return found == nullptr ? otherwise : found->truthy();
  }
  std::vector<Value> items() const { return iterate(value, environment); }
  // Returns the attribute of an item, or the item itself if `attribute` is null or none.
  Value key_of(const Value& item, const Value* attribute) const;
};

using Filter = Value (*)(const Call&);

Value iterator(std::vector<Value> items) { return Value::list(std::move(items), List::Kind::kIterator); }

// Returns the member at a dotted path: "function.name", "0.text". Undefined members on the path become `otherwise`,
// unless it is null.
Value attribute_of(const Value& value, const std::string& path, const Value* otherwise = nullptr) {
  Value current = value;
  for (const std::string& part : split_at(path, ".", -1)) {
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    current = get_item(current, number ? Value(index) : Value(part));
    if (current.is_undefined() && otherwise != nullptr) current = *otherwise;
  }
  return current;
}

Value Call::key_of(const Value& item, const Value* attribute) const {
  environment.spend(1);
  if (attribute == nullptr || attribute->is_none()) return item;
  if (attribute->is_integer()) return get_item(item, *attribute);
  const std::string path = environment.text_of(*attribute);
  if (path.find(',') != std::string::npos) fail(name + ": several attributes at once are not supported");
  return attribute_of(item, path);
}

Value length_filter(const Call& call) {
  if (const std::string* text = call.value.as<std::string>()) return length(*text);
  if (const List* list = call.value.as_list(); list != nullptr && list->kind != List::Kind::kIterator)
    return list->items.size();
  if (const Dict* dict = call.value.as_mapping()) return dict->items.size();
  if (call.value.is_undefined()) return 0;
  fail("\"" + call.value.type_name() + "\" has no length");
}

Value tojson_filter(const Call& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(0, "ensure_ascii", false);
  style.sort_keys = call.flag(3, "sort_keys", false);
  if (const Value* indent = call.argument(1, "indent"); indent != nullptr && !indent->is_none()) {
    const std::string* text = indent->as<std::string>();
    if (text == nullptr && !indent->is_integer()) fail("tojson: expected an integer as indent");
    style.indent =
        text != nullptr ? *text : std::string(static_cast<size_t>(std::clamp<int64_t>(indent->integer(), 0, 64)), ' ');
    style.item_separator = ",";
  }
  if (const Value* separators = call.argument(2, "separators"); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> pair = iterate(*separators, call.environment);
    if (pair.size() != 2) fail("tojson: expected two separators");
    style.item_separator = call.environment.text_of(pair[0]);
    style.key_separator = call.environment.text_of(pair[1]);
  }
  return to_json(call.value, style, call.environment.max_bytes);
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
  for (const Value& item : call.items()) {
    if (!first) out += separator;
    out += call.environment.text_of(call.key_of(item, attribute));
    first = false;
    call.environment.check_bytes(out.size());
  }
  return out;
}

std::string number_text(const Value& value) {
  refuse_undefined(value);
  const std::string* text = value.as<std::string>();
  return text == nullptr ? "" : strip(*text, nullptr, true, true);
}
std::optional<double> parse_float(const std::string& text) {
  // strtod accepts hexadecimal, Python's float() does not.
  if (text.empty() || text.find_first_of("xX") != std::string::npos) return std::nullopt;
  char* end;
  const double x = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() ? std::optional(x) : std::nullopt;
}

Value int_filter(const Call& call) {
  const Value* otherwise = call.argument(0, "default");
  Value fallback = otherwise == nullptr ? Value(0) : *otherwise;
  const int64_t base = call.integer_argument(1, "base", 10);
  if (base < 2 || base > 36) fail("int: expected a base of 2 to 36, found " + std::to_string(base));
  if (call.value.is_integer()) return call.value.integer();
  if (call.value.as<BigInteger>() != nullptr) return call.value;
  std::string text = number_text(call.value);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.erase(0, 2);
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  int64_t number = 0;
  const auto parsed = std::from_chars(begin, text.data() + text.size(), number, static_cast<int>(base));
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return number;
  const double* given = call.value.as<double>();
  const std::optional<double> x = given != nullptr ? *given : parse_float(text);
  if (!x || !std::isfinite(*x)) return fallback;
  if (std::abs(*x) >= 9.2e18) fail("int: " + call.environment.text_of(call.value) + " is out of range");
  return static_cast<int64_t>(*x);
}

Value float_filter(const Call& call) {
  const Value* otherwise = call.argument(0, "default");
  if (call.value.is_number()) return call.value.number();
  if (const BigInteger* big = call.value.as<BigInteger>()) return std::strtod(big->digits->c_str(), nullptr);
  const std::optional<double> x = parse_float(number_text(call.value));
  return x ? Value(*x) : otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value round_filter(const Call& call) {
  if (!call.value.is_number()) fail("round: expected a number, found \"" + call.value.type_name() + "\"");
  const int64_t precision = call.integer_argument(0, "precision", 0);
  if (precision < -300 || precision > 300)
    fail("round: the precision " + std::to_string(precision) + " is out of range");
  const std::string method = call.text_argument(1, "method", "common");
  const double factor = std::pow(10.0, static_cast<double>(precision)), x = call.value.number();
  if (method == "ceil") return std::ceil(x * factor) / factor;
  if (method == "floor") return std::floor(x * factor) / factor;
  if (method != "common") fail("round: expected common, ceil or floor, found \"" + method + "\"");
  if (call.value.is_integer() && precision >= 0) return call.value.integer();
  if (precision < 0) {
    const double rounded = std::nearbyint(x * factor) / factor;
    return call.value.is_integer() ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
  }
  char digits[700];  // printf rounds the exact value, as Python does.
  std::snprintf(digits, sizeof digits, "%.*f", static_cast<int>(precision), x);
  return std::strtod(digits, nullptr);
}

Value abs_filter(const Call& call) {
  if (call.value.is_integer()) return call.value.integer() < 0 ? negate(call.value) : Value(call.value.integer());
  if (!call.value.is_number()) fail("abs: expected a number, found \"" + call.value.type_name() + "\"");
  return std::abs(call.value.number());
}

Value folded(const Value& value, bool case_sensitive) {
  const std::string* text = value.as<std::string>();
  return text == nullptr || case_sensitive ? value : Value(lower(*text));
}

bool precedes(const Value& a, const Value& b) { return order_of(a, b) < 0; }

// Sorts (key, item) pairs by key in a stable way, and returns the items.
Value sorted(const Call& call, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  call.environment.spend(call.value.extent().weight * 2);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? precedes(b.first, a.first) : precedes(a.first, b.first);
  });
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value sort_filter(const Call& call) {
  std::vector<std::pair<Value, Value>> keyed;
  const bool sensitive = call.flag(1, "case_sensitive", false);
  for (const Value& item : call.items()) {
    keyed.emplace_back(folded(call.key_of(item, call.argument(2, "attribute")), sensitive), item);
  }
  return sorted(call, std::move(keyed), call.flag(0, "reverse", false));
}

Value dictsort_filter(const Call& call) {
  const Dict* dict = call.value.as_mapping();
  if (dict == nullptr) fail("dictsort: expected a dictionary, found \"" + call.value.type_name() + "\"");
  const bool sensitive = call.flag(0, "case_sensitive", false);
  const std::string by = call.text_argument(1, "by", "key");
  if (by != "key" && by != "value") fail("dictsort: expected key or value, found \"" + by + "\"");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(folded(by == "key" ? Value(key) : value, sensitive),
                       Value::list({key, value}, List::Kind::kTuple));
  }
  return sorted(call, std::move(keyed), call.flag(2, "reverse", false));
}

// The filters min and max.
Value extreme_filter(const Call& call) {
  const std::vector<Value> items = call.items();
  if (items.empty()) return Undefined{"of an empty sequence"};
  const bool sensitive = call.flag(0, "case_sensitive", false);
  const auto key = [&](const Value& item) {
    return folded(call.key_of(item, call.argument(1, "attribute")), sensitive);
  };
  const Value* best = &items[0];
  Value best_key = key(*best);
  for (const Value& item : items) {
    const Value item_key = key(item);
    if (call.name == "min" ? precedes(item_key, best_key) : precedes(best_key, item_key)) {
      best = &item;
      best_key = item_key;
    }
  }
  return *best;
}

Value sum_filter(const Call& call) {
  const Value* start = call.argument(1, "start");
  Value total = start == nullptr ? Value(0) : *start;
  if (total.as<std::string>() != nullptr) fail("sum: strings are joined, not summed");
  for (const Value& item : call.items()) {
    total = binary("+", total, call.key_of(item, call.argument(0, "attribute")), call.environment);
  }
  return total;
}

Value unique_filter(const Call& call) {
  std::vector<Value> kept, keys;
  for (const Value& item : call.items()) {
    const Value key = folded(call.key_of(item, call.argument(1, "attribute")), call.flag(0, "case_sensitive", false));
    call.environment.spend(static_cast<int64_t>(keys.size() / 8));
    if (key.as_dict() != nullptr || (key.as_list() != nullptr && key.as_list()->kind != List::Kind::kTuple)) {
      fail("unique: unhashable type: \"" + key.type_name() + "\"");
    }
    if (std::none_of(keys.begin(), keys.end(), [&](const Value& other) { return equal(key, other); })) {
      keys.push_back(key);
      kept.push_back(item);
    }
  }
  return iterator(std::move(kept));
}

Value batch_filter(const Call& call) {
  const int64_t size = call.integer_argument(0, "linecount", 0);
  if (size < 1) fail("batch: expected a size of 1 or more");
  std::vector<Value> batches, batch;
  for (const Value& item : call.items()) {
    batch.push_back(item);
    if (static_cast<int64_t>(batch.size()) == size) batches.push_back(Value::list(std::exchange(batch, {})));
  }
  if (!batch.empty()) {
    const Value* fill = call.argument(1, "fill_with");
    while (fill != nullptr && !fill->is_none() && static_cast<int64_t>(batch.size()) < size) {
      call.environment.spend(1);
      batch.push_back(*fill);
    }
    batches.push_back(Value::list(std::move(batch)));
  }
  return iterator(std::move(batches));
}

Value indent_filter(const Call& call) {
  const Value* width = call.argument(0, "width");
  const std::string* text = width == nullptr ? nullptr : width->as<std::string>();
  const int64_t spaces = text != nullptr ? 0 : std::clamp<int64_t>(call.integer_argument(0, "width", 4), 0, 256);
  const std::string by = text != nullptr ? *text : std::string(static_cast<size_t>(spaces), ' ');
  const bool blank = call.flag(2, "blank", false);
  if (call.value.as<std::string>() == nullptr)
    fail("indent: expected a string, found \"" + call.value.type_name() + "\"");
  std::string out = call.flag(1, "first", false) ? by : "";
  const std::vector<std::string> lines = split_lines(call.environment.text_of(call.value) + "\n");
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += by;
    out += lines[i];
    call.environment.check_bytes(out.size());
  }
  return like(call.value, std::move(out));
}

Value items_filter(const Call& call) {
  std::vector<Value> pairs;
  if (call.value.is_undefined()) return iterator({});
  const Dict* dict = call.value.as_mapping();
  if (dict == nullptr) fail("items: expected a dictionary, found \"" + call.value.type_name() + "\"");
  for (const auto& [key, value] : dict->items) pairs.push_back(Value::list({key, value}, List::Kind::kTuple));
  return iterator(std::move(pairs));
}

// Returns the positional arguments from `first` on, which are for the filter or test that an argument names.
Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments rest;
  for (size_t i = first; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}
CallShape shape_of(const Arguments& arguments) {
  const size_t n = arguments.positional.size();
  return {n, {}, std::vector<std::optional<std::string>>(n)};
}
void require(const Call& call, const std::optional<std::string>& fault) {
  if (fault) fail(call.name + ": " + *fault);
}

Value map_filter(const Call& call) {
  if (!call.value.truthy()) return iterator({});  // jinja2 returns nothing for 0 and none, too.
  const Value* attribute = call.argument(SIZE_MAX, "attribute");
  const Value* otherwise = call.argument(SIZE_MAX, "default");
  std::vector<Value> items;
  if (attribute != nullptr) {
    for (const Value& item : call.items()) {
      call.environment.spend(1);
      items.push_back(attribute_of(item, call.environment.text_of(*attribute), otherwise));
    }
    return iterator(std::move(items));
  }
  const std::string filter = call.text_argument(0, "filter", "");
  const Arguments rest = rest_of(call.arguments, 1);
  require(call, check_filter(filter, shape_of(rest)));
  for (const Value& item : call.items()) items.push_back(apply_filter(filter, item, rest, call.environment));
  return iterator(std::move(items));
}

// The filters select, reject, selectattr and rejectattr.
Value choose_filter(const Call& call) {
  if (!call.value.truthy()) return iterator({});
  const bool by_attribute = call.name.ends_with("attr"), keep = call.name.starts_with("select");
  const size_t at = by_attribute ? 1 : 0;
  const bool tested = call.arguments.positional.size() > at;
  const std::string test = tested ? call.environment.text_of(call.arguments.positional[at]) : "";
  const Arguments rest = rest_of(call.arguments, at + 1);
  if (tested) require(call, check_test(test, shape_of(rest)));
  std::vector<Value> items;
  for (const Value& item : call.items()) {
    const Value subject = by_attribute ? call.key_of(item, &call.arguments.positional[0]) : item;
    const bool holds = tested ? apply_test(test, subject, rest, call.environment) : subject.truthy();
    call.environment.spend(1);
    if (holds == keep) items.push_back(item);
  }
  return iterator(std::move(items));
}

Value text_filter(const Call& call) {
  const std::string text = call.environment.text_of(call.value);
  if (call.name == "safe") return Value::markup(text);
  if (call.name == "e" || call.name == "escape")
    return call.value.is_markup() ? call.value : Value::markup(escape_html(text));
  if (call.name == "upper") return like(call.value, upper(text));
  if (call.name == "lower") return like(call.value, lower(text));
  if (call.name == "title") return title_words(text);
  if (call.name == "capitalize") return like(call.value, capitalize(text));
  if (call.name == "trim") {
    const Value* set = call.argument(0, "chars");
    const bool given = set != nullptr && !set->is_none();
    const std::string chars = given ? call.environment.text_of(*set) : "";
    return like(call.value, strip(text, given ? &chars : nullptr, true, true));
  }
  if (call.name == "replace") {
    return replace(text, call.text_argument(0, "s", ""), call.text_argument(1, "new", ""),
                   call.integer_argument(2, "count", -1), call.environment);
  }
  return like(call.value, text);  // The filter "string".
}

Value format_filter(const Call& call) {
  const Arguments& given = call.arguments;
  if (!given.positional.empty() && !given.keywords.empty()) {
    fail("format: expected either positional or keyword arguments, found both");
  }
  const Value values = given.keywords.empty() ? Value::list(given.positional, List::Kind::kTuple)
                                              : Value::dict({given.keywords.begin(), given.keywords.end()});
  return like(call.value,
              format_percent(call.environment.text_of(call.value), values, call.environment, call.value.is_markup()));
}

Value first_filter(const Call& call) {
  if (List* list = call.value.as_list();
      list != nullptr && list->kind == List::Kind::kIterator && !list->items.empty()) {
    call.environment.spend(call.value.steps());
    Value first = list->items.front();
    list->items.erase(list->items.begin());
    return first;
  }
  const std::vector<Value> items = call.items();
  return items.empty() ? Value(Undefined{"first of an empty sequence"}) : items.front();
}

Value last_filter(const Call& call) {
  if (call.value.as_list() != nullptr && call.value.as_list()->kind == List::Kind::kIterator)
    fail("last: a generator has no last item");
  const std::vector<Value> items = call.items();
  return items.empty() ? Value(Undefined{"last of an empty sequence"}) : items.back();
}

Value reverse_filter(const Call& call) {
  if (const std::string* text = call.value.as<std::string>())
    return like(call.value, substring(*text, length(*text) - 1, -1, -1));
  std::vector<Value> items = call.items();
  std::reverse(items.begin(), items.end());
  return iterator(std::move(items));
}

Value list_filter(const Call& call) { return Value::list(call.items()); }

// A filter and its parameters. At least `required` arguments must be given.
struct FilterRow {
  Filter filter;
  std::vector<std::string_view> parameters;
  size_t required = 0;
  // Whether the filter takes any number of positional arguments. kNamed: yes, the name of a filter or test and the
  // arguments of that one. kAny: yes, arbitrary ones, and any keywords.
  enum class Open : uint8_t { kNo, kNamed, kAny } open = Open::kNo;
};

const std::map<std::string, FilterRow, std::less<>>& filters() {
  static const std::map<std::string, FilterRow, std::less<>> table = {
      {"abs", {abs_filter, {}}},
      {"batch", {batch_filter, {"linecount", "fill_with"}, 1}},
      {"capitalize", {text_filter, {}}},
      {"count", {length_filter, {}}},
      {"d", {default_filter, {"default_value", "boolean"}}},
      {"default", {default_filter, {"default_value", "boolean"}}},
      {"dictsort", {dictsort_filter, {"case_sensitive", "by", "reverse"}}},
      {"e", {text_filter, {}}},
      {"escape", {text_filter, {}}},
      {"first", {first_filter, {}}},
      {"float", {float_filter, {"default"}}},
      {"format", {format_filter, {}, 0, FilterRow::Open::kAny}},
      {"indent", {indent_filter, {"width", "first", "blank"}}},
      {"int", {int_filter, {"default", "base"}}},
      {"items", {items_filter, {}}},
      {"join", {join_filter, {"d", "attribute"}}},
      {"last", {last_filter, {}}},
      {"length", {length_filter, {}}},
      {"list", {list_filter, {}}},
      {"lower", {text_filter, {}}},
      {"map", {map_filter, {"attribute", "default"}, 1, FilterRow::Open::kNamed}},
      {"max", {extreme_filter, {"case_sensitive", "attribute"}}},
      {"min", {extreme_filter, {"case_sensitive", "attribute"}}},
      {"reject", {choose_filter, {}, 0, FilterRow::Open::kNamed}},
      {"rejectattr", {choose_filter, {}, 1, FilterRow::Open::kNamed}},
      {"replace", {text_filter, {"s", "new", "count"}, 2}},
      {"reverse", {reverse_filter, {}}},
      {"round", {round_filter, {"precision", "method"}}},
      {"safe", {text_filter, {}}},
      {"select", {choose_filter, {}, 0, FilterRow::Open::kNamed}},
      {"selectattr", {choose_filter, {}, 1, FilterRow::Open::kNamed}},
      {"sort", {sort_filter, {"reverse", "case_sensitive", "attribute"}}},
      {"string", {text_filter, {}}},
      {"sum", {sum_filter, {"attribute", "start"}}},
      {"title", {text_filter, {}}},
      {"tojson", {tojson_filter, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"trim", {text_filter, {"chars"}}},
      {"unique", {unique_filter, {"case_sensitive", "attribute"}}},
      {"upper", {text_filter, {}}}};
  return table;
}

}  // namespace

std::optional<std::string> check_filter(const std::string& name, const CallShape& call) {
  const auto found = filters().find(name);
  if (found == filters().end()) return "unknown filter \"" + name + "\"";
  const FilterRow& row = found->second;
  if (row.open == FilterRow::Open::kAny) return std::nullopt;
  for (const std::string& keyword : call.keywords) {
    if (std::find(row.parameters.begin(), row.parameters.end(), keyword) == row.parameters.end()) {
      return "the filter \"" + name + "\" has no argument \"" + keyword + "\"";
    }
  }
  if (row.open == FilterRow::Open::kNo && call.positional + call.keywords.size() > row.parameters.size()) {
    return "the filter \"" + name + "\" takes at most " + std::to_string(row.parameters.size()) + " arguments";
  }
  if (call.positional + call.keywords.size() < row.required) {
    return "the filter \"" + name + "\" takes at least " + std::to_string(row.required) + " arguments";
  }
  if (row.open == FilterRow::Open::kNo) return std::nullopt;
  // Check the filter or test that an argument names.
  const size_t at = name.ends_with("attr") ? 1 : 0;
  if (call.positional <= at || !call.constants[at]) return std::nullopt;
  CallShape inner;
  inner.positional = call.positional - at - 1;
  inner.constants.assign(call.constants.begin() + static_cast<std::ptrdiff_t>(at) + 1, call.constants.end());
  return name == "map" ? check_filter(*call.constants[at], inner) : check_test(*call.constants[at], inner);
}

bool is_filter(std::string_view name) { return filters().contains(name); }

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Environment& environment) {
  environment.spend(1 + value.steps());
  const auto found = filters().find(name);
  if (found == filters().end()) fail("unknown filter \"" + name + "\"");
  Value result = found->second.filter({name, value, arguments, environment});
  environment.spend(result.steps());
  return result;
}

}  // namespace smartkv::jinja
