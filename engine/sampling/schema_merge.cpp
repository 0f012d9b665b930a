#include "engine/sampling/schema_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/schema_check.h"
#include "engine/sampling/schema_keywords.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 7> kAllTypes = {"string", "number", "integer", "boolean", "null", "array", "object"};

bool names_type(const std::vector<std::string>& types, const std::string& type) {
  const auto has = [&](const char* name) { return std::find(types.begin(), types.end(), name) != types.end(); };
  return has(type.c_str()) || (type == "integer" && has("number"));
}

Json merge_types(const Json& a, const Json& b, const std::string& path) {
  const std::vector<std::string> left = types_of({{"type", a}}), right = types_of({{"type", b}});
  Json both = Json::array();
  for (const std::string& type : left) {
    if (names_type(right, type)) both.push_back(type);
  }
  for (const std::string& type : right) {
    if (names_type(left, type) && std::find(both.begin(), both.end(), type) == both.end()) both.push_back(type);
  }
  if (both.empty()) throw NoValueError(path + "type", "the combined types exclude each other");
  return both.size() == 1 ? both[0] : both;
}

Json all_of(const Json& a, const Json& b) { return a == b ? a : Json{{"allOf", {a, b}}}; }

Json merge_properties(const Json& a, const Json& b) {
  Json result = a;
  for (const auto& [name, schema] : b.items()) {
    result[name] = result.contains(name) ? all_of(result[name], schema) : schema;
  }
  return result;
}

Json union_of(const Json& a, const Json& b) {
  Json result = a;
  for (const Json& item : b) {
    if (std::find(result.begin(), result.end(), item) == result.end()) result.push_back(item);
  }
  return result;
}

Json common(const Json& a, const Json& b, const std::string& path) {
  Json result = Json::array();
  for (const Json& item : a) {
    if (std::find(b.begin(), b.end(), item) != b.end()) result.push_back(item);
  }
  if (result.empty()) throw NoValueError(path, "the combined lists have no value in common");
  return result;
}

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

Json merge_keyword(const std::string& key, const Json& a, const Json& b, const std::string& path) {
  if (a == b || is_annotation(key)) return a;
  if (key == "type") return merge_types(a, b, path);
  if (key == "properties" && a.is_object() && b.is_object()) return merge_properties(a, b);
  if (key == "required" && a.is_array() && b.is_array()) return union_of(a, b);
  if (key == "enum" && a.is_array() && b.is_array()) return common(a, b, path + key);
  if (key == "items") return all_of(a, b);
  if (a.is_number() && b.is_number()) {
    const bool a_is_less = a.get<double>() < b.get<double>();
    if (is_one_of(key, {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}))
      return a_is_less ? b : a;
    if (is_one_of(key, {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}))
      return a_is_less ? a : b;
  }
  if (key == "const") throw NoValueError(path + key, "the combined values exclude each other");
  if (key == "nullable" || key == "uniqueItems" || key == "unevaluatedProperties" || key == "unevaluatedItems")
    return key == "uniqueItems";
  throw GrammarError(path + key, "two combined values of this keyword are not supported");
}

// Throws GrammarError if `closed` excludes a property of `other`. additionalProperties applies to every property that
// is not named beside it, so it would exclude properties that only the other schema names.
void check_closed(const Json& closed, const Json& other, const std::string& path) {
  const auto additional = closed.find("additionalProperties");
  if (additional == closed.end() || *additional == Json(true) || !other.contains("properties")) return;
  for (const auto& [name, schema] : other["properties"].items()) {
    if (closed.contains("properties") && closed["properties"].contains(name)) continue;
    throw GrammarError(path + "additionalProperties",
                       "is not supported in combination with a schema that has the property \"" + name + "\"");
  }
}

// Returns the values that a schema lists, or nullopt if it lists none.
std::optional<Json> values_of(const Json& schema) {
  if (schema.contains("const")) return Json::array({schema["const"]});
  if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
  return std::nullopt;
}

// Returns the number of members of the schema's keyword `key`.
int64_t members(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? 0 : static_cast<int64_t>(found->size());
}

bool requires_property(const Json& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && std::find(required->begin(), required->end(), Json(name)) != required->end();
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  const std::span<const std::string_view> lists[] = {kObjectKeywords, kArrayKeywords,       kStringKeywords,
                                                     kNumberKeywords, kUnsupportedKeywords, kOtherKeywords};
  return std::ranges::none_of(lists, [&](const auto& list) { return std::ranges::find(list, keyword) != list.end(); });
}

std::string type_of_value(const Json& value) {
  if (value.is_string()) return "string";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_array()) return "array";
  if (value.is_object()) return "object";
  return value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>() ? "integer" : "number";
}

std::vector<std::string> types_of(const Json& schema) {
  std::vector<std::string> types;
  const auto type = schema.find("type");
  if (type == schema.end()) {
    types.assign(kAllTypes.begin(), kAllTypes.end());
  } else if (type->is_string()) {
    types.push_back(type->get<std::string>());
  } else if (type->is_array()) {
    for (const Json& one : *type) {
      const std::string name = one.is_string() ? one.get<std::string>() : one.dump();
      if (std::find(types.begin(), types.end(), name) == types.end()) types.push_back(name);
      if (types.size() > kAllTypes.size()) break;  // one of them is not a type
    }
  } else {
    types.push_back(type->dump());
  }
  if (std::find(types.begin(), types.end(), "number") != types.end()) std::erase(types, "integer");
  return types;
}

Json merge_schemas(const Json& a, const Json& b, const std::string& path) {
  check_closed(a, b, path);
  check_closed(b, a, path);
  Json result = a;
  for (const auto& [key, value] : b.items()) {
    result[key] = result.contains(key) ? merge_keyword(key, result[key], value, path) : value;
  }
  for (const Json* other : {&a, &b}) {  // "type" without "nullable" excludes null
    if (!other->contains("nullable") && other->contains("type")) result.erase("nullable");
  }
  return result;
}

bool exclude_each_other(const Json& a, const Json& b, EbnfGrammar* grammar) {
  grammar->spend(1);
  if (!a.is_object() || !b.is_object()) return false;
  const std::optional<Json> left = values_of(a), right = values_of(b);
  if (left && right) {
    const auto n_left = static_cast<int64_t>(left->size()), n_right = static_cast<int64_t>(right->size());
    grammar->spend(std::min(weight(*left) * n_right, weight(*right) * n_left));
    return std::none_of(left->begin(), left->end(), [&](const Json& value) {
      return std::find(right->begin(), right->end(), value) != right->end();
    });
  }
  grammar->spend(members(a, "type") + members(b, "type"));
  const std::vector<std::string> others = types_of(b), types = types_of(a);
  const bool shared = std::any_of(types.begin(), types.end(), [&](const std::string& type) {
    return names_type(others, type) || (type == "number" && names_type(others, "integer"));
  });
  if (!shared) return true;
  if (!a.contains("properties") || !b.contains("properties")) return false;
  grammar->spend(members(a, "properties") * members(b, "properties"));
  for (const auto& [name, schema] : a["properties"].items()) {
    const auto other = b["properties"].find(name);
    if (other == b["properties"].end()) continue;
    grammar->spend(members(a, "required") + members(b, "required"));
    if (!requires_property(a, name) || !requires_property(b, name)) continue;
    if (schema.is_object() && !schema.contains("$ref") && !other->contains("$ref") &&
        exclude_each_other(schema, *other, grammar)) {
      return true;
    }
  }
  return false;
}

}  // namespace smartkv
