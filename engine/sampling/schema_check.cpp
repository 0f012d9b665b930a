#include "engine/sampling/schema_check.h"

#include <algorithm>
#include <cmath>

#include "engine/sampling/decimal.h"
#include "engine/sampling/regex_match.h"
#include "engine/sampling/schema_merge.h"
#include "engine/sampling/string_grammar.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

double length_of(const std::string& text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  return static_cast<double>(std::count_if(text.begin(), text.end(), begins));
}

// Compares two numbers exactly. Returns -1, 0 or 1.
int compare(const Json& a, const Json& b) {
  const Decimal left = decimal(a), right = decimal(b);
  if (left.negative != right.negative) return left.negative ? -1 : 1;
  int size = left.whole.size() != right.whole.size() ? (left.whole.size() < right.whole.size() ? -1 : 1)
                                                     : left.whole.compare(right.whole);
  if (size == 0) size = left.fraction.compare(right.fraction);
  const int sign = size < 0 ? -1 : size > 0 ? 1 : 0;
  return left.negative ? -sign : sign;
}

bool is_multiple(const Json& value, const Json& of) {
  const double quotient = value.get<double>() / of.get<double>();
  return std::abs(quotient - std::round(quotient)) < 1e-9 * std::max(1.0, std::abs(quotient));
}

class Validator {
 public:
  Validator(SchemaReferences* references, EbnfGrammar* grammar) : references_(*references), grammar_(*grammar) {}

  bool check(const Json& value, const Json& schema, const std::string& path, int depth = 0) {
    if (depth > kSchemaDepth) {
      throw GrammarError(path,
                         "refers to itself or is nested deeper than " + std::to_string(kSchemaDepth) + " schemas");
    }
    grammar_.spend(1 + weight(value));
    if (schema.is_boolean()) return schema.get<bool>();
    if (!schema.is_object()) throw GrammarError(path, "expected a schema: an object or a boolean");
    return std::all_of(schema.items().begin(), schema.items().end(),
                       [&](const auto& item) { return holds(item.key(), item.value(), value, schema, path, depth); });
  }

 private:
  bool holds(const std::string& key, const Json& of, const Json& value, const Json& schema, const std::string& path,
             int depth) {
    const auto inner = [&](const Json& one, const Json& its_schema) {
      return check(one, its_schema, path + key + ".", depth + 1);
    };
    const auto some = [&](const auto& list) {
      return std::count_if(list.begin(), list.end(), [&](const Json& one) { return inner(value, one); });
    };
    if (key == "$ref") return inner(value, references_.target(of, path));
    // In the worst case each member of `of` is compared with each member of the value.
    grammar_.spend(of.is_structured() ? static_cast<int64_t>(of.size() * std::max<size_t>(1, value.size())) : 1);
    if (key == "const") return value == of;
    if (key == "enum") return of.is_array() && std::find(of.begin(), of.end(), value) != of.end();
    if (key == "type") return is_of_type(value, schema);
    if (key == "allOf" && of.is_array()) return some(of) == static_cast<int64_t>(of.size());
    if (key == "anyOf" && of.is_array()) return some(of) > 0;
    if (key == "oneOf" && of.is_array()) return some(of) == 1;
    if (key == "not") return !inner(value, of);
    if (value.is_string()) {
      return at_path(path + key, [&] { return string_holds(key, of, value.get_ref<const std::string&>()); });
    }
    if (value.is_number()) return number_holds(key, of, value);
    if (value.is_array()) return array_holds(key, of, value, schema, inner);
    if (value.is_object()) return object_holds(key, of, value, schema, inner);
    return true;
  }

  static bool is_of_type(const Json& value, const Json& schema) {
    const std::string type = type_of_value(value);
    const std::vector<std::string> types = types_of(schema);
    return std::any_of(types.begin(), types.end(),
                       [&](const std::string& one) { return one == type || (one == "number" && type == "integer"); });
  }

  bool string_holds(const std::string& key, const Json& of, const std::string& value) {
    if (key == "minLength") return !of.is_number() || length_of(value) >= of.get<double>();
    if (key == "maxLength") return !of.is_number() || length_of(value) <= of.get<double>();
    if (key == "pattern" && of.is_string()) return matches(of.get<std::string>(), value);
    if (key == "format" && of.is_string()) {
      const std::string* regex = format_regex(of.get<std::string>());
      return regex == nullptr || matches("^(" + *regex + ")$", value);
    }
    return true;
  }

  static bool number_holds(const std::string& key, const Json& of, const Json& value) {
    if (!of.is_number()) return true;
    if (key == "minimum") return compare(value, of) >= 0;
    if (key == "maximum") return compare(value, of) <= 0;
    if (key == "exclusiveMinimum") return compare(value, of) > 0;
    if (key == "exclusiveMaximum") return compare(value, of) < 0;
    return key != "multipleOf" || is_multiple(value, of);
  }

  template <typename Inner>
  bool array_holds(const std::string& key, const Json& of, const Json& value, const Json& schema, const Inner& inner) {
    const auto size = static_cast<double>(value.size());
    if (key == "minItems") return !of.is_number() || size >= of.get<double>();
    if (key == "maxItems") return !of.is_number() || size <= of.get<double>();
    if (key == "uniqueItems" && of == Json(true)) return unique(value);
    const size_t n_first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    if (key == "prefixItems" && of.is_array()) {
      for (size_t i = 0; i < std::min(value.size(), n_first); ++i) {
        if (!inner(value[i], of[i])) return false;
      }
    } else if (key == "items") {
      for (size_t i = n_first; i < value.size(); ++i) {
        if (!inner(value[i], of)) return false;
      }
    }
    return true;
  }

  bool unique(const Json& array) {
    for (size_t i = 0; i < array.size(); ++i) {
      for (size_t j = i + 1; j < array.size(); ++j) {
        grammar_.spend(1);
        if (array[i] == array[j]) return false;
      }
    }
    return true;
  }

  template <typename Inner>
  bool object_holds(const std::string& key, const Json& of, const Json& value, const Json& schema, const Inner& inner) {
    const auto size = static_cast<double>(value.size());
    if (key == "minProperties") return !of.is_number() || size >= of.get<double>();
    if (key == "maxProperties") return !of.is_number() || size <= of.get<double>();
    if (key == "required" && of.is_array()) {
      return std::all_of(of.begin(), of.end(), [&](const Json& name) {
        return !name.is_string() || value.contains(name.get<std::string>());
      });
    }
    for (const auto& [name, member] : value.items()) {
      if (key == "properties" && of.is_object() && of.contains(name) && !inner(member, of[name])) return false;
      if (key == "propertyNames" && !inner(Json(name), of)) return false;
      if (key == "additionalProperties" && !named(schema, name) && !inner(member, of)) return false;
      if (key != "patternProperties" || !of.is_object()) continue;
      for (const auto& [pattern, its_schema] : of.items()) {
        if (matches(pattern, name) && !inner(member, its_schema)) return false;
      }
    }
    return true;
  }

  bool named(const Json& schema, const std::string& name) {
    if (const auto properties = schema.find("properties"); properties != schema.end() && properties->contains(name))
      return true;
    const auto patterns = schema.find("patternProperties");
    return patterns != schema.end() && patterns->is_object() &&
           std::any_of(patterns->items().begin(), patterns->items().end(),
                       [&](const auto& item) { return matches(item.key(), name); });
  }

  bool matches(const std::string& regex, const std::string& text) {
    int64_t steps = 0;
    const bool result = regex_matches(regex, text, &steps);
    grammar_.spend(steps);
    return result;
  }

  SchemaReferences& references_;
  EbnfGrammar& grammar_;
};

}  // namespace

int64_t weight(const Json& value) {
  int64_t result = 1;
  if (value.is_string()) result += static_cast<int64_t>(value.get_ref<const std::string&>().size() / 16);
  if (value.is_array()) {
    for (const Json& one : value) result += weight(one);
  }
  if (value.is_object()) {
    for (const auto& [key, one] : value.items()) result += weight(one) + static_cast<int64_t>(key.size() / 16);
  }
  return result;
}

bool validates(const Json& value, const Json& schema, SchemaReferences* references, EbnfGrammar* grammar,
               const std::string& path) {
  return Validator(references, grammar).check(value, schema, path);
}

}  // namespace smartkv
