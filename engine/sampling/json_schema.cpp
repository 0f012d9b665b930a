#include "engine/sampling/json_schema.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/sampling/number_grammar.h"
#include "engine/sampling/regex_grammar.h"
#include "engine/sampling/schema_merge.h"
#include "engine/sampling/string_grammar.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

// Merging schemas that refer to themselves would not end.
constexpr int kMostDepth = 128;

constexpr std::array<std::string_view, 5> kObjectKeywords = {"properties", "required", "additionalProperties",
                                                             "patternProperties", "propertyNames"};
constexpr std::array<std::string_view, 4> kArrayKeywords = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::array<std::string_view, 4> kStringKeywords = {"pattern", "format", "minLength", "maxLength"};
constexpr std::array<std::string_view, 4> kNumberKeywords = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
constexpr std::array<std::string_view, 8> kOtherKeywords = {"type",  "enum",  "const",         "$ref",
                                                            "anyOf", "oneOf", "minProperties", "maxProperties"};

template <size_t n>
bool any_of_keys(const Json& schema, const std::array<std::string_view, n>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return schema.contains(key); });
}

template <size_t n>
bool has(const std::array<std::string_view, n>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

[[noreturn]] void expected(const std::string& path, const std::string& what) {
  throw GrammarError(path, "expected " + what);
}

class SchemaGrammar {
 public:
  SchemaGrammar(const Json& root, EbnfGrammar* grammar) : root_(root), grammar_(*grammar) {
  }

  std::string value(const Json& schema, const std::string& path, int depth = 0) {
    if (depth > kMostDepth) throw GrammarError(path, "nested deeper than " + std::to_string(kMostDepth) + " schemas");
    if (schema == Json(true)) return any();
    if (schema == Json(false)) throw GrammarError(path, "allows no value");
    if (!schema.is_object()) expected(path, "a schema: an object or a boolean");
    check_keywords(schema, path);
    if (schema.contains("$ref")) {
      if (is_alone(schema, "$ref")) return reference(schema["$ref"], path, depth);
      return value(resolved(schema, path, depth), path, depth + 1);
    }
    if (schema.contains("allOf")) return value(flattened(schema, path, depth), path, depth + 1);
    for (const char* key : {"anyOf", "oneOf"}) {
      if (schema.contains(key)) return options(schema, key, path, depth);
    }
    if (schema.contains("const") || schema.contains("enum")) return listed(schema, path);
    return typed(schema, path, depth);
  }

 private:
  static std::string at(const std::string& path, const std::string& key) { return path + key + "."; }
  static std::string at(const std::string& path, const std::string& key, size_t index) {
    return path + key + "[" + std::to_string(index) + "].";
  }

  static void check_keywords(const Json& schema, const std::string& path) {
    for (const auto& [key, unused] : schema.items()) {
      const bool known = has(kObjectKeywords, key) || has(kArrayKeywords, key) || has(kStringKeywords, key) ||
                         has(kNumberKeywords, key) || has(kOtherKeywords, key) || key == "allOf" || is_annotation(key);
      // What is no constraint, or one that holds anyway.
      const bool idle = (key == "uniqueItems" && unused == Json(false)) || (key == "nullable" && unused == Json(false)) ||
                        (key == "unevaluatedProperties" && unused.is_boolean()) || (key == "multipleOf" && unused == Json(1));
      if (!known && !idle) throw GrammarError(path + key, "the keyword \"" + key + "\" is not supported");
    }
  }

  static bool is_alone(const Json& schema, std::string_view keyword) {
    return std::all_of(schema.items().begin(), schema.items().end(),
                       [&](const auto& item) { return item.key() == keyword || is_annotation(item.key()); });
  }

  const Json& target(const Json& uri, const std::string& path) const {
    if (!uri.is_string()) expected(path + "$ref", "a string");
    const std::string text = uri.get<std::string>();
    if (!text.starts_with("#")) throw GrammarError(path + "$ref", "expected a reference within the schema, \"#...\", found \"" + text + "\"");
    try {
      return root_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      throw GrammarError(path + "$ref", "\"" + text + "\" leads nowhere");
    }
  }

  std::string reference(const Json& uri, const std::string& path, int depth) {
    const Json& schema = target(uri, path);
    const auto [known, is_new] = references_.try_emplace(uri.get<std::string>());
    if (is_new) {
      known->second = grammar_.reserve();
      const std::string name = known->second;
      grammar_.define(name, value(schema, at(path, "$ref"), depth + 1));
      return name;
    }
    return known->second;
  }

  // With what $ref refers to, merged into what stands beside it.
  Json resolved(const Json& schema, const std::string& path, int depth) {
    if (depth > kMostDepth) throw GrammarError(path + "$ref", "refers to itself");
    if (!schema.is_object() || !schema.contains("$ref")) return schema;
    Json rest = schema;
    rest.erase("$ref");
    return merged(resolved(target(schema["$ref"], path), path, depth + 1), rest, path);
  }

  Json merged(const Json& a, const Json& b, const std::string& path) {
    if (a == Json(true)) return b;
    if (b == Json(true)) return a;
    if (!a.is_object() || !b.is_object()) expected(path, "schemas that allow a value");
    return merge_schemas(a, b, path);
  }

  Json flattened(const Json& schema, const std::string& path, int depth) {
    if (depth > kMostDepth) throw GrammarError(path + "allOf", "nested too deep");
    if (!schema["allOf"].is_array()) expected(path + "allOf", "an array of schemas");
    Json result = schema;
    result.erase("allOf");
    for (size_t i = 0; i < schema["allOf"].size(); ++i) {
      Json part = resolved(schema["allOf"][i], at(path, "allOf", i), depth + 1);
      if (part.is_object()) check_keywords(part, at(path, "allOf", i));
      if (part.is_object() && part.contains("allOf")) part = flattened(part, at(path, "allOf", i), depth + 1);
      result = merged(result, part, path);
    }
    return result;
  }

  std::string options(const Json& schema, const char* key, const std::string& path, int depth) {
    const Json& list = schema[key];
    if (!list.is_array() || list.empty()) expected(path + key, "an array of at least one schema");
    Json rest = schema;
    rest.erase(key);
    std::vector<Json> branches;
    std::string result;
    for (size_t i = 0; i < list.size(); ++i) {
      Json branch = list[i];
      const bool plain = is_alone(schema, key);
      if (!plain || std::string_view(key) == "oneOf") branch = resolved(branch, at(path, key, i), depth + 1);
      if (!plain) branch = merged(branch, rest, at(path, key, i));
      const std::string ebnf = plain ? value(list[i], at(path, key, i), depth + 1) : value(branch, at(path, key, i), depth + 1);
      result += (i == 0 ? "" : " | ") + ebnf;
      branches.push_back(std::move(branch));
    }
    if (std::string_view(key) == "oneOf") check_exclusive(branches, path);
    return grammar_.add(result);
  }

  static void check_exclusive(const std::vector<Json>& branches, const std::string& path) {
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t j = i + 1; j < branches.size(); ++j) {
        if (exclude_each_other(branches[i], branches[j])) continue;
        throw GrammarError(path + "oneOf", "is supported where its options plainly exclude each other (by type, or by \"const\" or "
                                           "\"enum\" of a required property); \"anyOf\" needs no such thing");
      }
    }
  }

  std::string listed(const Json& schema, const std::string& path) {
    const bool constant = schema.contains("const");
    const Json values = constant ? Json::array({schema["const"]}) : schema["enum"];
    const std::string key = constant ? "const" : "enum";
    if (!values.is_array() || values.empty()) expected(path + key, "an array of at least one value");
    for (const auto& [other, unused] : schema.items()) {
      if (other == key || other == "type" || is_annotation(other)) continue;
      throw GrammarError(path + other, "is not supported beside \"" + key + "\"");
    }
    const std::vector<std::string> types = types_of(schema);
    std::vector<std::string> texts;
    for (const Json& one : values) {
      const std::string type = type_of_value(one);
      const bool fits = std::any_of(types.begin(), types.end(), [&](const std::string& allowed) {
        return allowed == type || (allowed == "number" && type == "integer");
      });
      if (fits) texts.push_back(one.dump());
    }
    if (texts.empty()) throw GrammarError(path + key, "holds no value of the type that \"type\" names");
    return grammar_.add(ebnf_choice(texts));
  }

  // What a schema without "type" means is told by its keywords.
  std::vector<std::string> types(const Json& schema) const {
    if (schema.contains("type")) return types_of(schema);
    if (any_of_keys(schema, kObjectKeywords)) return {"object"};
    if (any_of_keys(schema, kArrayKeywords)) return {"array"};
    if (any_of_keys(schema, kStringKeywords)) return {"string"};
    if (any_of_keys(schema, kNumberKeywords)) return {"number"};
    return types_of(schema);
  }

  std::string typed(const Json& schema, const std::string& path, int depth) {
    std::string result;
    for (const std::string& type : types(schema)) {
      result += (result.empty() ? "" : " | ") + of_type(type, schema, path, depth);
    }
    return grammar_.add(result);
  }

  std::string of_type(const std::string& type, const Json& schema, const std::string& path, int depth) {
    try {
      if (type == "string") return string_ebnf(schema, &grammar_);
      if (type == "integer") return integer_ebnf(bound(schema, "minimum", "exclusiveMinimum", true), bound(schema, "maximum", "exclusiveMaximum", false));
      if (type == "number") return number_ebnf(bound(schema, "minimum", "exclusiveMinimum", true), bound(schema, "maximum", "exclusiveMaximum", false));
    } catch (const GrammarError& error) {
      throw GrammarError(path + (error.path.empty() ? "minimum" : error.path), error.what());
    }
    if (type == "boolean") return R"(("true" | "false"))";
    if (type == "null") return "\"null\"";
    if (type == "array") return array(schema, path, depth);
    if (type == "object") return object(schema, path, depth);
    expected(path + "type", "string, number, integer, boolean, null, array or object, found \"" + type + "\"");
  }

  // The tighter of the two.
  static std::optional<NumberBound> bound(const Json& schema, const char* key, const char* exclusive_key, bool is_least) {
    for (const char* one : {key, exclusive_key}) {
      if (schema.contains(one) && !schema[one].is_number()) throw GrammarError(one, "expected a number");
    }
    if (!schema.contains(exclusive_key)) return schema.contains(key) ? std::optional(NumberBound{schema[key], false}) : std::nullopt;
    const NumberBound exclusive{schema[exclusive_key], true};
    if (!schema.contains(key)) return exclusive;
    const double other = schema[key].get<double>(), open = exclusive.value.get<double>();
    return (is_least ? other > open : other < open) ? NumberBound{schema[key], false} : exclusive;
  }

  static int64_t count(const Json& schema, const char* key, int64_t otherwise, const std::string& path) {
    if (!schema.contains(key)) return otherwise;
    if (!schema[key].is_number_integer() || schema[key] < 0) expected(path + key, "an integer >= 0");
    const int64_t value = schema[key].get<int64_t>();
    if (value > kMostRepetitions) throw GrammarError(path + key, "more than " + std::to_string(kMostRepetitions) + " is not supported");
    return value;
  }

  // `least` to `most` of them, at least one, with commas between.
  std::string series(const std::string& item, int64_t least, int64_t most) const {
    if (most == 1) return item;
    const std::string last = most == kUnbounded ? "" : std::to_string(most - 1);
    return item + " (" + comma() + " " + item + "){" + std::to_string(least - 1) + "," + last + "}";
  }

  std::string comma() const { return "\",\" " + space_; }

  std::string array(const Json& schema, const std::string& path, int depth) {
    int64_t least = count(schema, "minItems", 0, path), most = count(schema, "maxItems", kUnbounded, path);
    if (least > most) throw GrammarError(path + "minItems", "is above maxItems");
    if (most == 0) return "\"[]\"";
    std::string first;
    int64_t n_first = 0;
    if (schema.contains("prefixItems")) {
      if (!schema["prefixItems"].is_array()) expected(path + "prefixItems", "an array of schemas");
      for (size_t i = 0; i < schema["prefixItems"].size() && n_first < most; ++i, ++n_first) {
        if (i > 0) first += ' ' + comma() + ' ';
        first += value(schema["prefixItems"][i], at(path, "prefixItems", i), depth + 1);
      }
    }
    least = std::max<int64_t>(0, least - n_first);
    most = most == kUnbounded ? most : most - n_first;
    const Json items = schema.contains("items") ? schema["items"] : Json(n_first == 0 || least > 0);
    if (items == Json(false)) {
      if (least > 0) throw GrammarError(path + "minItems", "is above what \"items\" allows");
      most = 0;
    }
    if (items.is_array()) expected(path + "items", "a schema (a list of them is \"prefixItems\")");
    const std::string open = "\"[\" " + space_ + " ", close = " " + space_ + " \"]\"";
    if (most == 0) return n_first == 0 ? "\"[]\"" : open + first + close;
    const std::string item = value(items, at(path, "items"), depth + 1);
    if (n_first == 0) {
      const std::string some = open + series(item, std::max<int64_t>(1, least), most) + close;
      return least == 0 ? "(\"[]\" | " + some + ")" : some;
    }
    const std::string bound = most == kUnbounded ? "" : std::to_string(most);
    return open + first + " (" + comma() + " " + item + "){" + std::to_string(least) + "," + bound + "}" + close;
  }

  struct Property {
    std::string ebnf;  // name and value
    bool required = false;
  };

  std::string pair(const std::string& name, const std::string& of) const { return name + " \":\" " + space_ + " " + of; }

  std::string braces(const std::string& members, bool may_be_empty) const {
    const std::string some = "\"{\" " + space_ + " " + members + " " + space_ + " \"}\"";
    return may_be_empty ? "(\"{}\" | " + some + ")" : some;
  }

  std::string object(const Json& schema, const std::string& path, int depth) {
    const int64_t least = count(schema, "minProperties", 0, path), most = count(schema, "maxProperties", kUnbounded, path);
    if (least > most) throw GrammarError(path + "minProperties", "is above maxProperties");
    std::set<std::string> required = required_names(schema, path);
    Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
    if (!properties.is_object()) expected(path + "properties", "an object of schemas");
    if (properties.empty() && required.empty()) return map(schema, least, most, path, depth);
    for (const char* key : {"patternProperties", "propertyNames"}) {
      if (schema.contains(key)) throw GrammarError(path + key, "is not supported beside \"properties\" or \"required\"");
    }
    const Json additional = schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(false);
    for (const std::string& name : required) {
      if (!properties.contains(name)) properties[name] = schema.contains("additionalProperties") ? additional : Json(true);
    }
    std::vector<Property> members;
    std::vector<std::string> names;
    for (const auto& [name, member] : properties.items()) {
      if (member == Json(false)) {
        if (required.contains(name)) throw GrammarError(path + "required", "names \"" + name + "\", which allows no value");
      } else {
        const std::string of = value(member, at(path, "properties." + name), depth + 1);
        members.push_back({pair(name_ebnf(name), of), required.contains(name)});
      }
      names.push_back(name);
    }
    if (least > static_cast<int64_t>(required.size())) {
      throw GrammarError(path + "minProperties", "is supported up to the number of required properties");
    }
    if (most < (additional == Json(false) ? static_cast<int64_t>(members.size()) : kUnbounded)) {
      throw GrammarError(path + "maxProperties", "is supported where no more properties are named and \"additionalProperties\" is false");
    }
    std::string more;
    if (additional != Json(false)) {
      more = grammar_.add(pair(other_name_ebnf(names, &grammar_), value(additional, at(path, "additionalProperties"), depth + 1)));
    }
    if (members.empty() && more.empty()) return "\"{}\"";
    return braces(ordered(members, more), required.empty());
  }

  static std::set<std::string> required_names(const Json& schema, const std::string& path) {
    std::set<std::string> names;
    if (!schema.contains("required")) return names;
    if (!schema["required"].is_array()) expected(path + "required", "an array of strings");
    for (const Json& name : schema["required"]) {
      if (!name.is_string()) expected(path + "required", "an array of strings");
      names.insert(name.get<std::string>());
    }
    return names;
  }

  // At least one of the members, in their order, each at most once and those required in any case; then any number of
  // others, if there are any.
  std::string ordered(const std::vector<Property>& members, const std::string& more) {
    std::vector<std::string> after(members.size() + 1);  // what may follow once there is one
    after[members.size()] = more.empty() ? "\"\"" : '(' + comma() + ' ' + more + ")*";
    for (size_t i = members.size(); i-- > 0;) {
      const std::string next = comma() + " " + members[i].ebnf;
      after[i] = grammar_.add((members[i].required ? next : "(" + next + ")?") + " " + after[i + 1]);
    }
    std::string result;
    for (size_t i = 0; i < members.size(); ++i) {
      result += (i == 0 ? "" : " | ") + members[i].ebnf + " " + after[i + 1];
      if (members[i].required) return "(" + result + ")";
    }
    if (!more.empty()) result += (result.empty() ? "" : " | ") + more + " " + after[members.size()];
    return "(" + result + ")";
  }

  // An object that names no property.
  std::string map(const Json& schema, int64_t least, int64_t most, const std::string& path, int depth) {
    const bool patterned = schema.contains("patternProperties");
    Json of = schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(true);
    std::string name = name_string({}, path);
    if (patterned) {
      const Json& patterns = schema["patternProperties"];
      if (!patterns.is_object() || patterns.size() != 1 || schema.contains("propertyNames")) {
        throw GrammarError(path + "patternProperties", "is supported with one pattern, and without \"propertyNames\"");
      }
      of = patterns.begin().value();
      name = name_string({{"pattern", patterns.begin().key()}}, path);
    } else if (schema.contains("propertyNames")) {
      const Json names = resolved(schema["propertyNames"], at(path, "propertyNames"), depth + 1);
      if (names.is_object()) check_keywords(names, at(path, "propertyNames"));
      name = names.is_object() && (names.contains("enum") || names.contains("const"))
                 ? listed(merged(names, {{"type", "string"}}, path), at(path, "propertyNames"))
                 : name_string(names, at(path, "propertyNames"));
    }
    // Names may repeat, and then count once.
    if (least > 1) throw GrammarError(path + "minProperties", "above 1 is not supported without \"properties\"");
    if (of == Json(false)) most = 0;
    if (most == 0) {
      if (least > 0) throw GrammarError(path + "minProperties", "is above what the object may hold");
      return "\"{}\"";
    }
    const std::string member = grammar_.add(pair(name, value(of, at(path, patterned ? "patternProperties" : "additionalProperties"), depth + 1)));
    return braces(series(member, 1, most), least == 0);
  }

  std::string name_string(const Json& schema, const std::string& path) {
    try {
      return string_ebnf(schema.is_object() ? schema : Json::object(), &grammar_);
    } catch (const GrammarError& error) {
      throw GrammarError(path + error.path, error.what());
    }
  }

  // Any JSON value.
  std::string any() {
    if (!any_.empty()) return any_;
    any_ = grammar_.reserve();
    const std::string text = grammar_.add(string_ebnf(Json::object(), &grammar_));
    const std::string member = grammar_.add(pair(text, any_));
    const std::string array = "\"[]\" | \"[\" " + space_ + " " + series(any_, 1, kUnbounded) + " " + space_ + " \"]\"";
    grammar_.define(any_, text + " | " + number_ebnf({}, {}) + R"( | "true" | "false" | "null" | )" + array + " | " +
                              braces(series(member, 1, kUnbounded), true));
    return any_;
  }

  const Json& root_;
  EbnfGrammar& grammar_;
  std::string space_ = json_space(), any_;
  std::map<std::string, std::string> references_;  // rules by $ref
};

}  // namespace

std::string add_json_schema(const Json& schema, EbnfGrammar* grammar) {
  try {
    return SchemaGrammar(schema, grammar).value(schema, "");
  } catch (const GrammarError& error) {
    std::string path = error.path;
    if (path.ends_with('.')) path.pop_back();
    throw GrammarError(path, error.what());
  }
}

// A blank, or a line break and its indentation.
std::string json_space() { return R"((" " | "\n" [ \t]*)?)"; }

}  // namespace smartkv
