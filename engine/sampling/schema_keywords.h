// JSON Schema keywords that affect validation. Any other keyword is an annotation, even if a framework has added it
// (2020-12 core, section 4.3.1).
#pragma once

#include <array>
#include <string_view>

namespace smartkv {

// Each of the first four lists implies a type if a schema names none.
inline constexpr std::array<std::string_view, 5> kObjectKeywords = {"properties", "required", "additionalProperties",
                                                                    "patternProperties", "propertyNames"};
inline constexpr std::array<std::string_view, 5> kArrayKeywords = {"items", "prefixItems", "minItems", "maxItems",
                                                                   "uniqueItems"};
inline constexpr std::array<std::string_view, 4> kStringKeywords = {"pattern", "format", "minLength", "maxLength"};
inline constexpr std::array<std::string_view, 5> kNumberKeywords = {"minimum", "maximum", "exclusiveMinimum",
                                                                    "exclusiveMaximum", "multipleOf"};
inline constexpr std::array<std::string_view, 13> kUnsupportedKeywords = {
    "not",      "if",          "then",        "else",        "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains", "$dynamicRef", "$recursiveRef",     "divisibleBy"};
inline constexpr std::array<std::string_view, 14> kOtherKeywords = {
    "id",    "type",  "enum",          "$ref",          "const",           "nullable",         "allOf",
    "anyOf", "oneOf", "minProperties", "maxProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties"};

}  // namespace smartkv
