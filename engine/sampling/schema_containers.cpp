// Converts the arrays and objects of a JSON schema.
#include <algorithm>

#include "engine/sampling/regex_grammar.h"
#include "engine/sampling/schema_check.h"
#include "engine/sampling/schema_grammar.h"
#include "engine/sampling/schema_merge.h"
#include "engine/sampling/string_grammar.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

// A larger maximum counts as no maximum, because no answer is that long.
constexpr int64_t kMostCount = 1'000'000'000;
constexpr int64_t kMostMinCount = 4096;

int64_t count(const Json& schema, const char* key, int64_t otherwise, const std::string& path) {
  if (!schema.contains(key)) return otherwise;
  const Json& value = schema[key];
  const bool whole = value.is_number_integer() || (value.is_number_float() && type_of_value(value) == "integer");
  if (!whole || value < 0) schema_expected(path + key, "an integer >= 0");
  if (value > kMostCount) return std::string_view(key).starts_with("max") ? kUnbounded : kMostCount;
  return value.get<int64_t>();
}

void check_counts(const char* least_key, int64_t least, int64_t most, const std::string& path) {
  if (least > most) throw NoValueError(path + least_key, "is above the maximum");
  if (least > kMostMinCount)
    throw GrammarError(path + least_key, "more than " + std::to_string(kMostMinCount) + " is not supported");
}

std::set<std::string> required_names(const Json& schema, const std::string& path) {
  std::set<std::string> names;
  if (!schema.contains("required")) return names;
  if (!schema["required"].is_array()) schema_expected(path + "required", "an array of strings");
  for (const Json& name : schema["required"]) {
    if (!name.is_string()) schema_expected(path + "required", "an array of strings");
    names.insert(name.get<std::string>());
  }
  return names;
}

}  // namespace

// Matches `least` to `most` items separated by commas. REQUIRES: least >= 1.
std::string SchemaGrammar::series(const std::string& item, int64_t least, int64_t most) const {
  if (most == 1) return item;
  const std::string last = most == kUnbounded ? "" : std::to_string(most - 1);
  return item + " (" + comma() + " " + item + "){" + std::to_string(least - 1) + "," + last + "}";
}

std::string SchemaGrammar::array(const Json& schema, const std::string& path, int depth) {
  int64_t least = count(schema, "minItems", 0, path), most = count(schema, "maxItems", kUnbounded, path);
  check_counts("minItems", least, most, path);
  if (most == 0) return "\"[]\"";
  std::string first;
  int64_t n_first = 0;
  if (schema.contains("prefixItems")) {
    if (!schema["prefixItems"].is_array()) schema_expected(path + "prefixItems", "an array of schemas");
    for (size_t i = 0; i < schema["prefixItems"].size() && n_first < most; ++i, ++n_first) {
      if (i > 0) first += ' ' + comma() + ' ';
      first += value(schema["prefixItems"][i], schema_path(path, "prefixItems", i), depth + 1);
    }
  }
  least = std::max<int64_t>(0, least - n_first);
  most = most == kUnbounded ? most : most - n_first;
  const Json items = schema.contains("items") ? schema["items"] : Json(n_first == 0 || least > 0);
  if (items == Json(false)) {
    if (least > 0) throw NoValueError(path + "minItems", "is above what \"items\" allows");
    most = 0;
  }
  const std::string open = "\"[\" " + space_ + " ", close = " " + space_ + " \"]\"";
  if (most == 0) return n_first == 0 ? "\"[]\"" : open + first + close;
  const std::string item = value(items, schema_path(path, "items"), depth + 1);
  if (n_first == 0) {
    const std::string some = open + series(item, std::max<int64_t>(1, least), most) + close;
    return least == 0 ? "(\"[]\" | " + some + ")" : some;
  }
  const std::string bound = most == kUnbounded ? "" : std::to_string(most);
  return open + first + " (" + comma() + " " + item + "){" + std::to_string(least) + "," + bound + "}" + close;
}

std::string SchemaGrammar::pair(const std::string& name, const std::string& of) const {
  return name + " \":\" " + space_ + " " + of;
}

std::string SchemaGrammar::braces(const std::string& members, bool may_be_empty) const {
  const std::string some = "\"{\" " + space_ + " " + members + " " + space_ + " \"}\"";
  return may_be_empty ? "(\"{}\" | " + some + ")" : some;
}

std::string SchemaGrammar::object(const Json& schema, const std::string& path, int depth) {
  const int64_t least = count(schema, "minProperties", 0, path),
                most = count(schema, "maxProperties", kUnbounded, path);
  check_counts("minProperties", least, most, path);
  const std::set<std::string> required = required_names(schema, path);
  Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
  if (!properties.is_object()) schema_expected(path + "properties", "an object of schemas");
  if (!schema.contains("properties") && required.empty()) return map(schema, least, most, path, depth);
  if (properties.empty() && required.empty() &&
      (schema.contains("patternProperties") || schema.contains("propertyNames"))) {
    return map(schema, least, most, path, depth);
  }
  for (const char* key : {"patternProperties", "propertyNames"}) {
    if (schema.contains(key)) throw GrammarError(path + key, "is not supported beside \"properties\" or \"required\"");
  }
  const Json additional = schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(false);
  std::set<std::string> named;
  for (const auto& [name, member] : properties.items()) named.insert(name);
  const Json unnamed = schema.contains("additionalProperties") ? additional : Json(true);
  const int64_t unnamed_weight = weight(unnamed);
  for (const std::string& name : required) {
    grammar_.spend(1);
    if (named.contains(name)) continue;
    grammar_.spend(unnamed_weight);
    properties.get_ref<Json::object_t&>().emplace_back(name, unnamed);  // operator[] would compare with all names
  }
  std::vector<Property> members;
  std::vector<std::string> names;
  for (const auto& [name, member] : properties.items()) {
    if (member == Json(false)) {
      if (required.contains(name))
        throw NoValueError(path + "required", "names \"" + name + "\", which allows no value");
    } else {
      const std::string of = value(member, schema_path(path, "properties." + name), depth + 1);
      members.push_back({pair(name_ebnf(name), of), required.contains(name)});
    }
    names.push_back(name);
  }
  if (least > static_cast<int64_t>(required.size())) {
    throw GrammarError(path + "minProperties", "is supported only up to the number of required properties");
  }
  if (most < (additional == Json(false) ? static_cast<int64_t>(members.size()) : kUnbounded)) {
    throw GrammarError(path + "maxProperties",
                       "is supported only if \"additionalProperties\" is false and \"properties\" has no more members");
  }
  std::string more;
  if (additional != Json(false)) {
    const std::string name = at_path(path + "additionalProperties", [&] { return other_name_ebnf(names, &grammar_); });
    more = grammar_.add(pair(name, value(additional, schema_path(path, "additionalProperties"), depth + 1)));
  }
  if (members.empty() && more.empty()) return "\"{}\"";
  return braces(ordered(members, more), required.empty());
}

// Matches at least one property. The members come in their order, each at most once, the required ones always. Any
// number of further properties, each matched by `more`, may follow unless `more` is empty.
std::string SchemaGrammar::ordered(const std::vector<Property>& members, const std::string& more) {
  std::vector<std::string> after(members.size() + 1);  // after[i]: members from i on, if a property came before them
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

std::string SchemaGrammar::map_name(const Json& schema, const std::string& path, int depth) {
  if (schema.contains("patternProperties")) {
    const Json& patterns = schema["patternProperties"];
    if (!patterns.is_object() || patterns.size() != 1 || schema.contains("propertyNames")) {
      throw GrammarError(path + "patternProperties",
                         "is supported only with a single pattern and without \"propertyNames\"");
    }
    try {
      return string_ebnf({{"pattern", patterns.begin().key()}}, &grammar_);
    } catch (const TooLargeError&) {
      throw;
    } catch (const GrammarError& error) {
      throw GrammarError(path + "patternProperties", error.what());
    }
  }
  if (!schema.contains("propertyNames")) return string_ebnf(Json::object(), &grammar_);
  const std::string at = schema_path(path, "propertyNames");
  const Json names = merged(resolved(schema["propertyNames"], at, depth + 1), {{"type", "string"}}, at);
  check_schema_keywords(names, at);
  if (names.contains("enum") || names.contains("const")) return grammar_.add(listed(names, at));
  try {
    return string_ebnf(names, &grammar_);
  } catch (const TooLargeError&) {
    throw;
  } catch (const GrammarError& error) {
    throw GrammarError(at + error.path, error.what());
  }
}

std::string SchemaGrammar::map(const Json& schema, int64_t least, int64_t most, const std::string& path, int depth) {
  const bool patterned = schema.contains("patternProperties");
  const std::string name = map_name(schema, path, depth);
  Json of = schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(true);
  if (patterned) of = schema["patternProperties"].begin().value();
  // The grammar lets names repeat, and repeated names count as one property.
  if (least > 1) throw GrammarError(path + "minProperties", "above 1 is not supported without \"properties\"");
  if (of == Json(false)) most = 0;
  if (most == 0) {
    if (least > 0) {
      throw NoValueError(path + "minProperties", "is above the number of properties that the object may have");
    }
    return "\"{}\"";
  }
  const std::string inner = schema_path(path, patterned ? "patternProperties" : "additionalProperties");
  return braces(series(grammar_.add(pair(name, value(of, inner, depth + 1))), 1, most), least == 0);
}

}  // namespace smartkv
