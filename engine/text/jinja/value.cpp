#include "engine/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/text/exact_integer.h"

namespace smartkv::jinja {
namespace {

constexpr int kValueDepth = 200;
constexpr int64_t kMaxWeight = 4'000'000;

void add(Extent& extent, const Value& child) {
  const Extent inner = child.extent();
  extent.weight += inner.weight;
  extent.depth = std::max(extent.depth, inner.depth + 1);
  extent.is_shared |= inner.is_shared;
  if (extent.weight > kMaxWeight) throw RuntimeError{"a value grows beyond the limit"};
  if (extent.depth > kValueDepth) {
    throw RuntimeError{"a value is nested more than " + std::to_string(kValueDepth) + " deep"};
  }
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.kind != Dict::Kind::kDict || b.kind != Dict::Kind::kDict || a.items.size() != b.items.size()) return false;
  const auto sorted = [](const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    std::sort(items.begin(), items.end(), [](auto* x, auto* y) { return key_precedes(x->first, y->first); });
    return items;
  };
  const auto left = sorted(a), right = sorted(b);
  return std::equal(left.begin(), left.end(), right.begin(),
                    [](auto* x, auto* y) { return equal(x->first, y->first) && equal(x->second, y->second); });
}

// Compares two integers in decimal digits: negative if a < b, 0 if they are equal, positive if a > b.
int compare_digits(std::string_view a, std::string_view b) {
  const bool negative = a.starts_with('-');
  if (negative != b.starts_with('-')) return negative ? -1 : 1;
  const int order = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  return negative ? -order : order;
}

// Compares a big integer with a number. Every int64_t is nearer to 0 than a big integer.
int compare_with_number(const BigInteger& big, const Value& number) {
  const bool negative = big.digits->starts_with('-');
  if (number.is_integer()) return negative ? -1 : 1;
  const double value = std::strtod(big.digits->c_str(), nullptr);
  return value < number.number() ? -1 : value > number.number();
}

bool equal_lists(const List& a, const List& b) {
  if (&a == &b) return true;
  return a.is_sequence() && a.kind == b.kind &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    const std::string* text = name.as<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find_key(const Value& key) const {
  for (const auto& [name, value] : items) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  if (key.as<std::string>() == nullptr && !key.is_number() && !key.is_none()) {
    throw RuntimeError{"expected a string, a number or none as a dictionary's key, found \"" + key.type_name() + "\""};
  }
  for (auto& [name, held] : items) {
    if (equal(name, key)) {
      held = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

Value Value::list(std::vector<Value> items, List::Kind kind) {
  Extent extent;
  for (const Value& item : items) add(extent, item);
  return std::make_shared<List>(List{std::move(items), kind, extent});
}

Value Value::dict(std::vector<std::pair<Value, Value>> items, Dict::Kind kind) {
  Extent extent;
  for (const auto& [key, value] : items) add(extent, value);
  extent.is_shared |= kind != Dict::Kind::kDict;
  return std::make_shared<Dict>(Dict{std::move(items), kind, extent});
}

Value Value::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kValueDepth)
    throw RuntimeError{"a variable is nested more than " + std::to_string(kValueDepth) + " deep"};
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return json.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return big_integer(json.dump());
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_integer: return json.get<int64_t>();
    case nlohmann::json::value_t::number_float: return json.get<double>();
    case nlohmann::json::value_t::string: return json.get<std::string>();
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, from_json(item, depth + 1));
      return dict(std::move(items));
    }
    default:
      if (is_exact_integer(json)) return big_integer(digits_of(json));
      return nullptr;
  }
}

List* Value::as_list() const {
  const auto* list = as<std::shared_ptr<List>>();
  return list == nullptr ? nullptr : list->get();
}
const List* Value::as_sequence() const {
  const List* list = as_list();
  return list != nullptr && list->is_sequence() ? list : nullptr;
}
Dict* Value::as_dict() const {
  const auto* dict = as<std::shared_ptr<Dict>>();
  return dict == nullptr ? nullptr : dict->get();
}
const Dict* Value::as_mapping() const {
  const Dict* dict = as_dict();
  return dict != nullptr && dict->kind == Dict::Kind::kDict ? dict : nullptr;
}
int64_t Value::integer() const {
  const bool* flag = as<bool>();
  return flag != nullptr ? int64_t{*flag} : *as<int64_t>();
}
double Value::number() const {
  const double* x = as<double>();
  return x != nullptr ? *x : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* text = as<std::string>()) return !text->empty();
  if (const List* list = as_list()) return list->kind == List::Kind::kIterator || !list->items.empty();
  if (const Dict* dict = as_mapping()) return !dict->items.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (as<bool>()) return "bool";
  if (as<int64_t>() || as<BigInteger>()) return "int";
  if (as<double>()) return "float";
  if (as<std::string>()) return is_markup() ? "Markup" : "str";
  if (const List* list = as_list()) {
    static constexpr const char* kNames[] = {"list", "tuple", "generator", "dict_keys", "dict_values", "dict_items"};
    return kNames[static_cast<size_t>(list->kind)];
  }
  if (const Dict* dict = as_dict()) {
    static constexpr const char* kNames[] = {"dict", "Namespace", "LoopContext"};
    return kNames[static_cast<size_t>(dict->kind)];
  }
  return as<Builtin>() != nullptr ? "function" : "macro";
}

Extent Value::extent() const {
  if (const std::string* text = as<std::string>()) return {1 + static_cast<int64_t>(text->size() / 256)};
  if (const List* list = as_list()) return list->extent;
  if (const Dict* dict = as_dict()) return dict->extent;
  return {};
}

int64_t Value::steps() const {
  if (const std::string* text = as<std::string>()) return static_cast<int64_t>(text->size() / 256);
  if (const List* list = as_list()) return static_cast<int64_t>(list->items.size() / 8);
  if (const Dict* dict = as_dict()) return static_cast<int64_t>(dict->items.size() / 8);
  return 0;
}

bool equal(const Value& a, const Value& b) {
  const auto *big_a = a.as<BigInteger>(), *big_b = b.as<BigInteger>();
  if (big_a != nullptr && big_b != nullptr) return *big_a->digits == *big_b->digits;
  if (big_a != nullptr && b.is_number()) return compare_with_number(*big_a, b) == 0;
  if (big_b != nullptr && a.is_number()) return compare_with_number(*big_b, a) == 0;
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  }
  const std::string *text_a = a.as<std::string>(), *text_b = b.as<std::string>();
  if (text_a != nullptr && text_b != nullptr) return *text_a == *text_b;
  const List *list_a = a.as_list(), *list_b = b.as_list();
  if (list_a != nullptr && list_b != nullptr) return equal_lists(*list_a, *list_b);
  const Dict *dict_a = a.as_dict(), *dict_b = b.as_dict();
  if (dict_a != nullptr && dict_b != nullptr) return equal_dicts(*dict_a, *dict_b);
  const auto *macro_a = a.as<const Macro*>(), *macro_b = b.as<const Macro*>();
  if (macro_a != nullptr && macro_b != nullptr) return *macro_a == *macro_b;
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  const auto *big_a = a.as<BigInteger>(), *big_b = b.as<BigInteger>();
  if (big_a != nullptr && big_b != nullptr) return compare_digits(*big_a->digits, *big_b->digits);
  if (big_a != nullptr && b.is_number()) return compare_with_number(*big_a, b);
  if (big_b != nullptr && a.is_number()) return -compare_with_number(*big_b, a);
  const std::string *text_a = a.as<std::string>(), *text_b = b.as<std::string>();
  if (text_a != nullptr && text_b != nullptr) return text_a->compare(*text_b) < 0 ? -1 : *text_a != *text_b;
  const List *list_a = a.as_sequence(), *list_b = b.as_sequence();
  if (list_a == nullptr || list_b == nullptr || list_a->kind != list_b->kind) throw TypeMismatch();
  for (size_t i = 0; i < std::min(list_a->items.size(), list_b->items.size()); ++i) {
    if (!equal(list_a->items[i], list_b->items[i])) return compare(list_a->items[i], list_b->items[i]);
  }
  return list_a->items.size() < list_b->items.size() ? -1 : list_a->items.size() > list_b->items.size();
}

bool key_precedes(const Value& a, const Value& b) {
  const auto rank = [](const Value& key) {
    return !key.is_number() ? (key.is_none() ? 0 : 3) : std::isnan(key.number()) ? 1 : 2;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return rank(a) >= 2 && compare(a, b) < 0;
}

}  // namespace smartkv::jinja
