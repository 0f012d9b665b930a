#include <algorithm>
#include <cmath>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/strings.h"
#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

[[noreturn]] void mismatch(const std::string& op, const Value& left, const Value& right) {
  refuse_undefined(left);
  refuse_undefined(right);
  fail("unsupported operand types for " + op + ": \"" + left.type_name() + "\" and \"" + right.type_name() + "\"");
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Value float_operation(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    const double power = std::pow(a, b);
    if (!std::isfinite(power) && std::isfinite(a) && std::isfinite(b)) fail("the result of ** is not a finite number");
    return power;
  }
  if (b == 0) fail("division by zero");
  if (op == "/") return a / b;
  const double quotient = std::floor(a / b);
  if (op == "//") return quotient;
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Value integer_operation(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) return float_operation(op, static_cast<double>(a), static_cast<double>(b));
    result = 1;
    for (int64_t i = 0; i < b && !overflow && result != 0; ++i) {
      if (a == 1 || (a == -1 && b > 64)) return a == 1 || b % 2 == 0 ? int64_t{1} : int64_t{-1};
      overflow = __builtin_mul_overflow(result, a, &result);
    }
  } else {
    if (b == 0) fail("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) {  // Only this quotient can overflow.
      if (op == "%") return int64_t{0};
      overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      result = op == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    }
  }
  if (overflow) fail("integer overflow in " + op);
  return result;
}

std::string repeat(const std::string& text, int64_t times, Environment& environment) {
  if (times <= 0 || text.empty()) return "";
  if (static_cast<int64_t>(text.size()) > environment.max_bytes / times) fail("a string grows beyond the limit");
  std::string out;
  for (int64_t i = 0; i < times; ++i) out += text;
  return out;
}

// Returns the index of Python's x[i] in a sequence of n items, or -1 if it is out of range.
int64_t normal_index(int64_t i, int64_t n) {
  if (i < 0) i += n;
  return i < 0 || i >= n ? -1 : i;
}

// Splits valid UTF-8 into its characters.
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> out;
  for (std::string_view rest = text; !rest.empty();) out.emplace_back(utf8_next(rest));
  return out;
}

}  // namespace

std::string escaped(const Value& text) {
  const std::string& plain = *text.as<std::string>();
  return text.is_markup() ? plain : escape_html(plain);
}

Value like(const Value& original, std::string text) {
  return original.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

void refuse_undefined(const Value& value) {
  if (const Undefined* undefined = value.as<Undefined>()) fail("\"" + undefined->name + "\" is undefined");
}

int order_of(const Value& left, const Value& right) {
  refuse_undefined(left);
  refuse_undefined(right);
  try {
    return compare(left, right);
  } catch (const TypeMismatch&) {
    fail("\"" + left.type_name() + "\" and \"" + right.type_name() + "\" cannot be ordered");
  }
}

Value negate(const Value& value) {
  if (const double* x = value.as<double>()) return -*x;
  if (!value.is_integer()) mismatch("unary -", value, value);
  return integer_operation("-", 0, value.integer());
}

Value binary(const std::string& op, const Value& left, const Value& right, Environment& environment) {
  if (op == "~") {
    std::string joined = environment.text_of(left) + environment.text_of(right);
    environment.check_bytes(joined.size());
    environment.spend(static_cast<int64_t>(joined.size() / 256));
    return joined;
  }
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return integer_operation(op, left.integer(), right.integer());
    return float_operation(op, left.number(), right.number());
  }
  environment.spend(left.steps() + right.steps());
  const std::string *text_left = left.as<std::string>(), *text_right = right.as<std::string>();
  const List *list_left = left.as_sequence(), *list_right = right.as_sequence();
  const bool markup = left.is_markup() || right.is_markup();
  if (op == "+" && text_left != nullptr && text_right != nullptr) {
    std::string joined = markup ? escaped(left) + escaped(right) : *text_left + *text_right;
    environment.check_bytes(joined.size());
    return markup ? Value::markup(std::move(joined)) : Value(std::move(joined));
  }
  if (op == "+" && list_left != nullptr && list_right != nullptr && list_left->kind == list_right->kind) {
    std::vector<Value> items = list_left->items;
    items.insert(items.end(), list_right->items.begin(), list_right->items.end());
    return Value::list(std::move(items), list_left->kind);
  }
  if (op == "%" && text_left != nullptr) {
    std::string out = format_percent(*text_left, right, environment, left.is_markup());
    environment.spend(static_cast<int64_t>(out.size() / 256));
    return left.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  if (op == "*" && (text_left != nullptr || text_right != nullptr)) {
    const Value& times = text_left != nullptr ? right : left;
    if (times.is_integer()) {
      std::string out = repeat(text_left != nullptr ? *text_left : *text_right, times.integer(), environment);
      environment.spend(static_cast<int64_t>(out.size() / 256));
      return markup ? Value::markup(std::move(out)) : Value(std::move(out));
    }
  }
  if (op == "*" && (list_left != nullptr || list_right != nullptr)) {
    const List& list = list_left != nullptr ? *list_left : *list_right;
    const Value& times = list_left != nullptr ? right : left;
    if (times.is_integer()) {
      std::vector<Value> items;
      for (int64_t i = 0; i < times.integer() && !list.items.empty(); ++i) {
        environment.spend(1 + static_cast<int64_t>(list.items.size() / 8));
        items.insert(items.end(), list.items.begin(), list.items.end());
      }
      return Value::list(std::move(items), list.kind);
    }
  }
  mismatch(op, left, right);
}

bool contains(const Value& container, const Value& item, Environment& environment) {
  environment.spend(container.steps());
  if (const std::string* text = container.as<std::string>()) {
    const std::string* part = item.as<std::string>();
    if (part == nullptr) mismatch("in", item, container);
    return text->find(*part) != std::string::npos;
  }
  if (const Dict* dict = container.as_mapping()) {
    if (item.as_dict() != nullptr || (item.as_sequence() != nullptr && item.as_sequence()->kind == List::Kind::kList)) {
      fail("unhashable type: \"" + item.type_name() + "\"");
    }
    return dict->find_key(item) != nullptr;
  }
  if (container.as_list() != nullptr) {
    environment.spend(std::min(container.extent().weight, item.extent().weight) / 8);
    const std::vector<Value> items = iterate(container, environment);
    return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(item, other); });
  }
  if (container.is_undefined()) return false;
  mismatch("in", item, container);
}

std::vector<Value> iterate(const Value& value, Environment& environment) {
  environment.spend(value.steps());
  if (List* list = value.as_list()) {
    if (list->kind == List::Kind::kIterator) return std::exchange(list->items, {});
    return list->items;
  }
  std::vector<Value> items;
  if (const Dict* dict = value.as_mapping()) {
    for (const auto& [key, held] : dict->items) items.push_back(key);
  } else if (const std::string* text = value.as<std::string>()) {
    environment.spend(static_cast<int64_t>(text->size() / 8));
    for (std::string& character : characters(*text)) items.push_back(std::move(character));
  } else if (!value.is_undefined()) {
    fail(std::string("\"").append(value.type_name()) + "\" is not iterable");
  }
  return items;
}

Value get_item(const Value& object, const Value& key) {
  refuse_undefined(object);
  const std::string* name = key.as<std::string>();
  if (const Dict* dict = object.as_dict()) {
    const Value* found = dict->find_key(key);
    if (found != nullptr) return *found;
  } else if (key.is_integer()) {
    if (const List* list = object.as_sequence()) {
      const int64_t i = normal_index(key.integer(), static_cast<int64_t>(list->items.size()));
      if (i >= 0) return list->items[static_cast<size_t>(i)];
    } else if (const std::string* text = object.as<std::string>()) {
      const int64_t i = normal_index(key.integer(), length(*text));
      if (i >= 0) return like(object, substring(*text, i, i + 1, 1));
    }
  }
  if (name != nullptr && object.as_mapping() != nullptr && is_dict_method(*name)) return Builtin{*name};
  return Undefined{name != nullptr    ? name->substr(0, 60)
                   : key.is_integer() ? std::to_string(key.integer())
                                      : key.type_name()};
}

Value get_attribute(const Value& object, const std::string& name) {
  if (object.as_mapping() != nullptr) {
    if (is_dict_method(name)) return Builtin{name};
    if (is_forbidden_dict_method(name)) return Undefined{name};
  }
  return get_item(object, name);
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Environment& environment) {
  const std::string* text = object.as<std::string>();
  const List* list = object.as_sequence();
  refuse_undefined(object);
  if (text == nullptr && list == nullptr) fail("\"" + object.type_name() + "\" cannot be sliced");
  for (const Value* part : {&start, &stop, &step}) {
    if (!part->is_none() && !part->is_integer()) {
      fail("expected integers or none as slice indices, found \"" + part->type_name() + "\"");
    }
  }
  environment.spend(object.steps());
  const int64_t n = text != nullptr ? length(*text) : static_cast<int64_t>(list->items.size());
  const int64_t by = step.is_none() ? 1 : std::clamp(step.integer(), -n - 1, n + 1);
  if (by == 0) fail("the step of a slice is 0");
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    int64_t i = part.integer();
    if (i < 0) i = i < -n ? -1 : i + n;
    return std::clamp<int64_t>(i, by > 0 ? 0 : -1, by > 0 ? n : n - 1);
  };
  const int64_t from = bound(start, by > 0 ? 0 : n - 1), to = bound(stop, by > 0 ? n : -1);
  if (text != nullptr) return like(object, substring(*text, from, to, by));
  std::vector<Value> picked;
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by) picked.push_back(list->items[static_cast<size_t>(i)]);
  return Value::list(std::move(picked), list->kind);
}

}  // namespace smartkv::jinja
