#include "engine/text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

// repr(float): the shortest digits that read back, with an exponent from 1e16 on and below 1e-4.
std::string float_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char buffer[40];
  const double magnitude = std::abs(x);
  const bool scientific = x != 0 && (magnitude >= 1e16 || magnitude < 1e-4);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x, scientific ? std::chars_format::scientific : std::chars_format::fixed).ptr;
  std::string text(buffer, end);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string string_repr(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    char escaped[8];
    if (c == quote || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escaped[8];
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
          out += escaped;
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

void write_json(const Value& value, int64_t indent, bool sort_keys, int64_t depth, std::string& out) {
  const auto separator = [&](bool first, int64_t at) {
    if (!first) out += indent < 0 ? ", " : ",";
    if (indent >= 0) out += "\n" + std::string(static_cast<size_t>(indent * at), ' ');
  };
  if (const List* list = value.as_list()) {
    out += "[";
    for (size_t i = 0; i < list->items.size(); ++i) {
      separator(i == 0, depth + 1);
      write_json(list->items[i], indent, sort_keys, depth + 1, out);
    }
    if (indent >= 0 && !list->items.empty()) separator(true, depth);
    out += "]";
  } else if (const Dict* dict = value.as_dict()) {
    std::vector<const std::pair<std::string, Value>*> items;
    for (const auto& item : dict->items) items.push_back(&item);
    if (sort_keys) std::stable_sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->first < b->first; });
    out += "{";
    for (size_t i = 0; i < items.size(); ++i) {
      separator(i == 0, depth + 1);
      out += json_string(items[i]->first) + ": ";
      write_json(items[i]->second, indent, sort_keys, depth + 1, out);
    }
    if (indent >= 0 && !items.empty()) separator(true, depth);
    out += "}";
  } else if (const std::string* text = value.as<std::string>()) {
    out += json_string(*text);
  } else if (const bool* flag = value.as<bool>()) {
    out += *flag ? "true" : "false";
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_number()) {
    const std::string number = to_text(value);
    out += number == "nan" ? "NaN" : number == "inf" ? "Infinity" : number == "-inf" ? "-Infinity" : number;
  } else {
    throw TypeMismatch();
  }
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, held] : items) {
    if (name == key) {
      held = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

Value Value::list(std::vector<Value> items, bool tuple) { return std::make_shared<List>(List{std::move(items), tuple}); }

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return json.get<bool>();
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned: return json.get<int64_t>();
    case nlohmann::json::value_t::number_float: return json.get<double>();
    case nlohmann::json::value_t::string: return json.get<std::string>();
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) dict->items.emplace_back(key, from_json(item));
      return dict;
    }
    default: return nullptr;
  }
}

const List* Value::as_list() const {
  const auto* list = as<std::shared_ptr<List>>();
  return list == nullptr ? nullptr : list->get();
}
Dict* Value::as_dict() const {
  const auto* dict = as<std::shared_ptr<Dict>>();
  return dict == nullptr ? nullptr : dict->get();
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
  if (const List* list = as_list()) return !list->items.empty();
  if (const Dict* dict = as_dict()) return dict->is_namespace || !dict->items.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (as<bool>()) return "bool";
  if (as<int64_t>()) return "int";
  if (as<double>()) return "float";
  if (as<std::string>()) return "str";
  if (const List* list = as_list()) return list->tuple ? "tuple" : "list";
  if (const Dict* dict = as_dict()) return dict->is_namespace ? "namespace" : "dict";
  return as<Builtin>() != nullptr ? "function" : "macro";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  }
  const std::string *text_a = a.as<std::string>(), *text_b = b.as<std::string>();
  if (text_a != nullptr && text_b != nullptr) return *text_a == *text_b;
  const List *list_a = a.as_list(), *list_b = b.as_list();
  if (list_a != nullptr && list_b != nullptr) {
    return list_a->tuple == list_b->tuple && std::equal(list_a->items.begin(), list_a->items.end(), list_b->items.begin(), list_b->items.end(), equal);
  }
  const Dict *dict_a = a.as_dict(), *dict_b = b.as_dict();
  if (dict_a != nullptr && dict_b != nullptr) {
    if (dict_a->is_namespace || dict_b->is_namespace) return dict_a == dict_b;
    return dict_a->items.size() == dict_b->items.size() &&
           std::all_of(dict_a->items.begin(), dict_a->items.end(), [&](const auto& item) {
             const Value* other = dict_b->find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  const auto *macro_a = a.as<const Macro*>(), *macro_b = b.as<const Macro*>();
  if (macro_a != nullptr && macro_b != nullptr) return *macro_a == *macro_b;
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  const std::string *text_a = a.as<std::string>(), *text_b = b.as<std::string>();
  if (text_a != nullptr && text_b != nullptr) return text_a->compare(*text_b) < 0 ? -1 : *text_a != *text_b;
  const List *list_a = a.as_list(), *list_b = b.as_list();
  if (list_a == nullptr || list_b == nullptr || list_a->tuple != list_b->tuple) throw TypeMismatch();
  for (size_t i = 0; i < std::min(list_a->items.size(), list_b->items.size()); ++i) {
    if (!equal(list_a->items[i], list_b->items[i])) return compare(list_a->items[i], list_b->items[i]);
  }
  return list_a->items.size() < list_b->items.size() ? -1 : list_a->items.size() > list_b->items.size();
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.as<std::string>()) return *text;
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const bool* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const int64_t* number = value.as<int64_t>()) return std::to_string(*number);
  if (const double* number = value.as<double>()) return float_text(*number);
  if (const std::string* text = value.as<std::string>()) return string_repr(*text);
  std::string out;
  if (const List* list = value.as_list()) {
    out = list->tuple ? "(" : "[";
    for (size_t i = 0; i < list->items.size(); ++i) out += (i == 0 ? "" : ", ") + to_repr(list->items[i]);
    if (list->tuple && list->items.size() == 1) out += ",";
    return out + (list->tuple ? ")" : "]");
  }
  if (const Dict* dict = value.as_dict()) {
    out = dict->is_namespace ? "<Namespace {" : "{";
    for (size_t i = 0; i < dict->items.size(); ++i) {
      out += (i == 0 ? "" : ", ") + string_repr(dict->items[i].first) + ": " + to_repr(dict->items[i].second);
    }
    return out + (dict->is_namespace ? "}>" : "}");
  }
  return "<" + value.type_name() + ">";
}

std::string to_json(const Value& value, int64_t indent, bool sort_keys) {
  std::string out;
  write_json(value, indent, sort_keys, 0, out);
  return out;
}

}  // namespace smartkv::jinja
