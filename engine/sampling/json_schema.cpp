#include "engine/sampling/json_schema.h"

#include <algorithm>
#include <span>

#include "engine/sampling/regex_grammar.h"
#include "engine/sampling/schema_check.h"
#include "engine/sampling/schema_grammar.h"
#include "engine/sampling/schema_keywords.h"
#include "engine/sampling/schema_merge.h"
#include "engine/sampling/string_grammar.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

bool any_of_keys(const Json& schema, std::span<const std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return schema.contains(key); });
}

// Rewrites keywords of earlier drafts as in draft 2020-12.
Json modernized(const Json& schema) {
  Json result = schema;
  for (const auto& [exclusive, bound] :
       {std::pair("exclusiveMinimum", "minimum"), std::pair("exclusiveMaximum", "maximum")}) {
    if (!result.contains(exclusive) || !result[exclusive].is_boolean()) continue;
    const bool excludes = result[exclusive].get<bool>();
    result.erase(exclusive);
    if (!excludes || !result.contains(bound)) continue;
    result[exclusive] = result[bound];
    result.erase(bound);
  }
  if (result.contains("items") && result["items"].is_array() && !result.contains("prefixItems")) {
    result["prefixItems"] = result["items"];
    result.erase("items");
    if (result.contains("additionalItems")) result["items"] = result["additionalItems"];
  }
  if (result.contains("prefixItems") && !result.contains("items") &&
      result.value("unevaluatedItems", Json()) == Json(false)) {
    result["items"] = false;
  }
  return result;
}

bool is_alone(const Json& schema, std::string_view keyword) {
  return std::all_of(schema.items().begin(), schema.items().end(),
                     [&](const auto& item) { return item.key() == keyword || is_annotation(item.key()); });
}

// Returns the tighter of the inclusive and the exclusive bound, or nullopt if there is none.
std::optional<NumberBound> bound(const Json& schema, const char* key, const char* exclusive_key, bool is_least) {
  for (const char* one : {key, exclusive_key}) {
    if (schema.contains(one) && !schema[one].is_number()) throw GrammarError(one, "expected a number");
  }
  if (!schema.contains(exclusive_key))
    return schema.contains(key) ? std::optional(NumberBound{schema[key], false, key}) : std::nullopt;
  const NumberBound exclusive{schema[exclusive_key], true, exclusive_key};
  if (!schema.contains(key)) return exclusive;
  const double other = schema[key].get<double>(), open = exclusive.value.get<double>();
  return (is_least ? other > open : other < open) ? NumberBound{schema[key], false, key} : exclusive;
}

NumberRange number_range(const Json& schema) {
  return {bound(schema, "minimum", "exclusiveMinimum", true), bound(schema, "maximum", "exclusiveMaximum", false),
          schema.value("multipleOf", Json())};
}

// Returns the types that a schema means. The keywords of a schema without "type" decide.
std::vector<std::string> meant_types(const Json& schema) {
  if (schema.contains("type")) return types_of(schema);
  if (any_of_keys(schema, kObjectKeywords)) return {"object"};
  if (any_of_keys(schema, kArrayKeywords)) return {"array"};
  if (any_of_keys(schema, kStringKeywords)) return {"string"};
  if (any_of_keys(schema, kNumberKeywords)) return {"number"};
  return types_of(schema);
}

}  // namespace

void check_schema_keywords(const Json& schema, const std::string& path) {
  for (const auto& [key, value] : schema.items()) {
    const bool open = (key == "unevaluatedProperties" || key == "unevaluatedItems") && !value.is_boolean();
    if (open || std::ranges::find(kUnsupportedKeywords, key) != kUnsupportedKeywords.end()) {
      throw GrammarError(path + key, "the keyword \"" + key + "\" is not supported");
    }
    if (key == "multipleOf" && !(value.is_number() && value > 0)) schema_expected(path + key, "a number above 0");
    if ((key == "nullable" || key == "uniqueItems") && !value.is_boolean()) schema_expected(path + key, "a boolean");
  }
}

std::string SchemaGrammar::value(const Json& schema, const std::string& path, int depth, bool is_option) {
  grammar_.spend(1);
  if (schema == Json(true)) return any();
  try {
    if (depth > kSchemaDepth)
      throw GrammarError(path, "nested deeper than " + std::to_string(kSchemaDepth) + " schemas");
    if (schema == Json(false)) throw NoValueError(path, "allows no value");
    if (!schema.is_object()) schema_expected(path, "a schema: an object or a boolean");
    return rule_of(schema, path, depth);
  } catch (const TooLargeError&) {
    throw;
  } catch (const NoValueError& error) {
    if (!lenient_ || is_option) throw;
    return without_fault(schema, path, depth, error);
  } catch (const GrammarError& error) {
    if (!lenient_) throw;
    return without_fault(schema, path, depth, error);
  }
}

std::string SchemaGrammar::rule_of(const Json& schema, const std::string& path, int depth) {
  const std::string text = schema.dump();
  grammar_.spend(static_cast<int64_t>(text.size() / 16));
  const auto [entry, is_new] = known_.try_emplace(text);
  std::string& known = entry->second;
  if (!is_new) {
    if (known.empty()) known = grammar_.reserve();
    return known;
  }
  try {
    const std::string body = expression(modernized(schema), path, depth);
    if (known.empty()) {
      known = grammar_.add(body);
    } else {
      grammar_.define(known, body);
    }
    return known;
  } catch (const GrammarError&) {
    // Another rule may already refer to this name, so define it as a rule that no text matches.
    if (!known.empty()) grammar_.define(known, known);
    known_.erase(text);
    throw;
  }
}

// Converts the schema without the keyword at fault. Nested schemas have already left out their own unsupported
// keywords.
std::string SchemaGrammar::without_fault(const Json& schema, const std::string& path, int depth,
                                         const GrammarError& error) {
  std::string fault = error.path.starts_with(path) ? error.path.substr(path.size()) : "";
  fault = fault.substr(0, fault.find_first_of(".["));
  if (!schema.is_object() || depth > kSchemaDepth) return any();
  Json rest = schema;
  // Keep "type" as long as another keyword may be at fault.
  for (const std::string& key :
       {fault == "type" ? "" : fault, std::string("$ref"), std::string("allOf"), std::string("anyOf"),
        std::string("oneOf"), std::string("enum"), std::string("const")}) {
    if (rest.erase(key) > 0) return value(rest, path, depth);
  }
  return any();
}

std::string SchemaGrammar::expression(const Json& schema, const std::string& path, int depth) {
  check_schema_keywords(schema, path);
  if (schema.contains("nullable")) {
    Json rest = schema;
    rest.erase("nullable");
    const std::string some = value(rest, path, depth + 1);
    return schema["nullable"] == Json(true) ? some + " | \"null\"" : some;
  }
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

std::string SchemaGrammar::reference(const Json& uri, const std::string& path, int depth) {
  const Json& schema = references_.target(uri, path);
  const auto [known, is_new] = by_reference_.try_emplace(uri.get<std::string>());
  if (!is_new) return known->second;
  std::string name = known->second = grammar_.reserve();
  try {
    grammar_.define(name, value(schema, schema_path(path, "$ref"), depth + 1));
  } catch (const GrammarError&) {
    grammar_.define(name, name);
    by_reference_.erase(uri.get<std::string>());
    throw;
  }
  return name;
}

Json SchemaGrammar::resolved(const Json& schema, const std::string& path, int depth) {
  if (depth > kSchemaDepth) throw GrammarError(path + "$ref", "refers to itself");
  if (!schema.is_object() || !schema.contains("$ref")) return schema;
  Json rest = schema;
  rest.erase("$ref");
  return merged(resolved(references_.target(schema["$ref"], path), path, depth + 1), rest, path);
}

Json SchemaGrammar::merged(const Json& a, const Json& b, const std::string& path) {
  if (a == Json(true)) return b;
  if (b == Json(true)) return a;
  if (a == Json(false) || b == Json(false)) throw NoValueError(path, "expected schemas that allow a value");
  if (!a.is_object() || !b.is_object()) schema_expected(path, "a schema: an object or a boolean");
  grammar_.spend(weight(a) + weight(b));
  for (const auto& [key, value] : a.items()) {  // merging compares all pairs of elements
    if (const auto other = b.find(key); other != b.end())
      grammar_.spend(static_cast<int64_t>(value.size() * other->size()));
  }
  return merge_schemas(modernized(a), modernized(b), path);
}

const Json& SchemaGrammar::flattened(const Json& schema, const std::string& path, int depth) {
  const std::string text = schema.dump();
  grammar_.spend(static_cast<int64_t>(text.size() / 16));
  const auto [entry, is_new] = flat_.try_emplace(text);
  std::optional<Json>& flat = entry->second;  // the reference stays valid when other entries are added
  if (!is_new) {
    if (!flat) throw GrammarError(path + "allOf", "refers to itself");
    return *flat;
  }
  try {
    if (depth > kSchemaDepth) throw GrammarError(path + "allOf", "nested too deeply");
    if (!schema["allOf"].is_array()) schema_expected(path + "allOf", "an array of schemas");
    Json result = schema;
    result.erase("allOf");
    for (size_t i = 0; i < schema["allOf"].size(); ++i) {
      const std::string at = schema_path(path, "allOf", i);
      Json part = resolved(schema["allOf"][i], at, depth + 1);
      if (part.is_object()) check_schema_keywords(part, at);
      if (part.is_object() && part.contains("allOf")) part = flattened(part, at, depth + 1);
      result = merged(result, part, path);
    }
    return flat.emplace(std::move(result));
  } catch (const GrammarError&) {
    flat_.erase(text);
    throw;
  }
}

std::string SchemaGrammar::options(const Json& schema, const char* key, const std::string& path, int depth) {
  const Json& list = schema[key];
  if (!list.is_array() || list.empty()) schema_expected(path + key, "an array of at least one schema");
  Json rest = schema;
  rest.erase(key);
  const bool plain = is_alone(schema, key), exclusive = std::string_view(key) == "oneOf";
  std::vector<Json> branches;
  std::vector<std::string> some;
  std::optional<NoValueError> none;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = schema_path(path, key, i);
    try {
      Json branch = !plain || exclusive ? resolved(list[i], at, depth + 1) : list[i];
      if (!plain) branch = merged(branch, rest, at);
      some.push_back(value(plain ? list[i] : branch, at, depth + 1, true));
      branches.push_back(std::move(branch));
    } catch (const NoValueError& error) {
      none = error;  // other options may allow a value
    }
  }
  if (some.empty()) throw NoValueError(*none);
  if (exclusive) check_exclusive(branches, path);
  return ebnf_either(some);
}

void SchemaGrammar::check_exclusive(const std::vector<Json>& branches, const std::string& path) {
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = i + 1; j < branches.size(); ++j) {
      if (exclude_each_other(branches[i], branches[j], &grammar_)) continue;
      throw GrammarError(
          path + "oneOf",
          "is supported only if its options exclude each other by type, or by \"const\" or \"enum\" of a "
          "required property; \"anyOf\" has no such limit");
    }
  }
}

std::string SchemaGrammar::listed(const Json& schema, const std::string& path) {
  const std::string key = schema.contains("enum") ? "enum" : "const";
  const Json values = key == "enum" ? schema["enum"] : Json::array({schema["const"]});
  if (!values.is_array() || values.empty()) schema_expected(path + key, "an array of at least one value");
  Json rest = schema;
  rest.erase(key);
  std::vector<std::string> texts;
  for (const Json& one : values) {
    if (validates(one, rest, &references_, &grammar_, path)) texts.push_back(one.dump());
  }
  if (texts.empty()) throw NoValueError(path + key, "holds no value that the other keywords allow");
  return ebnf_choice(texts);
}

std::string SchemaGrammar::typed(const Json& schema, const std::string& path, int depth) {
  std::string result;
  for (const std::string& type : meant_types(schema)) {
    result += (result.empty() ? "" : " | ") + of_type(type, schema, path, depth);
  }
  return result;
}

std::string SchemaGrammar::of_type(const std::string& type, const Json& schema, const std::string& path, int depth) {
  if (type == "string") return at_path(path, [&] { return string_ebnf(schema, &grammar_); });
  if (type == "integer") return at_path(path, [&] { return integer_ebnf(number_range(schema)); });
  if (type == "number") return at_path(path, [&] { return number_ebnf(number_range(schema)); });
  if (type == "boolean") return R"(("true" | "false"))";
  if (type == "null") return "\"null\"";
  if (type == "array") return array(schema, path, depth);
  if (type == "object") return object(schema, path, depth);
  schema_expected(path + "type", "string, number, integer, boolean, null, array or object, found \"" + type + "\"");
}

std::string SchemaGrammar::any() {
  if (!any_.empty()) return any_;
  any_ = grammar_.reserve();
  const std::string text = grammar_.add(string_ebnf(Json::object(), &grammar_));
  const std::string member = grammar_.add(pair(text, any_));
  const std::string array = "\"[]\" | \"[\" " + space_ + " " + series(any_, 1, kUnbounded) + " " + space_ + " \"]\"";
  grammar_.define(any_, text + " | " + number_ebnf({}) + R"( | "true" | "false" | "null" | )" + array + " | " +
                            braces(series(member, 1, kUnbounded), true));
  return any_;
}

std::string add_json_schema(const Json& schema, EbnfGrammar* grammar, Unsupported unsupported) {
  try {
    return SchemaGrammar(schema, unsupported, grammar).value(schema, "");
  } catch (GrammarError& error) {
    if (error.path.ends_with('.')) error.path.pop_back();
    throw;
  }
}

// Allows a blank, or one or two line breaks and an indentation, as in llama.cpp.
std::string json_space() { return R"((" " | "\n" "\n"? [ \t]{0,20})?)"; }

}  // namespace smartkv
