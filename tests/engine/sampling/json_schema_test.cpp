// Which texts the grammar of a JSON schema takes, and the keyword that each refusal names.
#include <gtest/gtest.h>

#include "engine/sampling/json_schema.h"
#include "tests/engine/sampling/grammar_match.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

std::string grammar_of(const char* schema) {
  EbnfGrammar grammar;
  const std::string root = add_json_schema(Json::parse(schema), &grammar);
  return grammar.text(root);
}

struct Case {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

TEST(JsonSchema, TakesWhatValidates) {
  const Case cases[] = {
      {R"({"type": "string"})", {R"("")", R"("a \"b\" \u00e9 \ud83d\ude00 é")"}, {"a", R"("\ud83d")", "\"\n\"", R"("a" )"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("éüñ")"}, {R"("a")", R"("abcd")"}},
      {R"({"type": "string", "minLength": 2})", {R"("ab\"\n")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^a+$"})", {R"("aa")"}, {R"("")", R"("ab")"}},
      {R"({"type": "string", "pattern": "b"})", {R"("b")", R"("abc")"}, {R"("ac")"}},
      {R"({"type": "string", "pattern": "^a\"\\\\$"})", {R"("a\"\\")"}, {R"("a"\")"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")", R"("1999-12-31")"}, {R"("2023-02-29")", R"("2023-04-31")"}},
      {R"({"type": "integer"})", {"0", "-7", "123"}, {"-0", "01", "1.0", "1e3"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})", {"-12", "-9", "0", "9", "99", "104"}, {"-13", "105", "1000"}},
      {R"({"type": "number", "minimum": 0.25, "maximum": 3})", {"0.25", "0.3", "1", "2.999", "3", "3.0"}, {"0", "0.2", "3.01", "-1", "1e0"}},
      {R"({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0})", {"-0.1", "-0.49", "-0.0001"}, {"-0.5", "0", "-0.0", "-0.51"}},
      {R"({"type": ["boolean", "null"]})", {"true", "null"}, {"0"}},
      {R"({"enum": ["a", 1, null, {"k": [1]}]})", {"\"a\"", "1", "null", R"({"k":[1]})"}, {"\"b\""}},
      {R"({"const": "x\ny"})", {R"("x\ny")"}, {R"("x")"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})", {"[1]", "[1, 2,3]", "[\n  1\n]"}, {"[]", "[1,2,3,4]", "[1,]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})", {"[1,null]"}, {"[1,null,2]", "[null]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "object"})", {"{}", R"({"a": [1, {"b": null}], "c": -1.5e3})"}, {R"({"a"})", "[]"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}}, "required": ["b"]})",
       {R"({"b":null})", R"({"a": 1, "b": null, "c": true})", R"({"b":null,"c":false})"},
       {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"ab":null,"a":1,"abc":2})", R"({"x":1})"},
       {R"({"x":1,"ab":2})", R"({"ab":1})", R"({"x":null})"}},
      {R"({"type": "object", "properties": {}, "required": ["q"]})", {R"({"q": [1]})"}, {"{}"}},
      {R"({"type": "object", "patternProperties": {"^[ab]+$": {"type": "integer"}}})", {"{}", R"({"ab":1})"}, {R"({"c":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["n", "s"]}, "additionalProperties": {"type": "integer"}, "minProperties": 1})",
       {R"({"n":1})", R"({"s":1,"n":2})"}, {"{}", R"({"x":1})"}},
      {R"({"properties": {"a\"b": {"type": "null"}}})", {R"({"a\"b":null})"}, {R"({"a"b":null})"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"5", "\"x\""}, {"\"xy\""}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":null})", R"({"b":null})"}, {"{}"}},
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "null"}}, "required": ["k"]},
                     {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]}]})",
       {R"({"k":"x","v":null})", R"({"k":"y"})"}, {R"({"k":"z"})", R"({"k":"y","v":null})"}},
      {R"({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]})", {"3", "5"}, {"2", "6", "\"a\""}},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}})", {"1"}, {"\"a\""}},
      {R"({"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/n"})",
       {R"({"next":null})", R"({"next":{"next":null}})"}, {"{}"}},
      {R"({"properties": {"a": {"$ref": "#/$defs/a", "description": "x", "minimum": 2}}, "$defs": {"a": {"type": "integer"}}})", {R"({"a":2})"}, {R"({"a":1})"}},
      {"true", {"1", "[]", "\"a\""}, {""}},
  };
  for (const Case& one : cases) {
    const std::string grammar = grammar_of(one.schema);
    for (const std::string& text : one.valid) EXPECT_TRUE(obeys(grammar, text)) << one.schema << " should take " << text << "\n" << grammar;
    for (const std::string& text : one.invalid) EXPECT_FALSE(obeys(grammar, text)) << one.schema << " should not take " << text << "\n" << grammar;
  }
}

TEST(JsonSchema, RefusalsNameTheKeyword) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "not"},
      {R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})", "properties.a.uniqueItems"},
      {R"({"items": {"multipleOf": 3}})", "items.multipleOf"},
      {R"({"type": "object", "dependentRequired": {}})", "dependentRequired"},
      {R"({"type": "strange"})", "type"},
      {R"({"type": "string", "format": "strange"})", "format"},
      {R"x({"type": "string", "pattern": "a(?=b)"})x", "pattern"},
      {R"({"type": "string", "pattern": "^a*$", "maxLength": 3})", "maxLength"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength"},
      {R"({"type": "string", "maxLength": 100000})", "maxLength"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "minimum"},
      {R"({"type": "number", "minimum": "3"})", "minimum"},
      {R"({"$ref": "other.json"})", "$ref"},
      {R"({"$ref": "#/$defs/none"})", "$ref"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "oneOf"},
      {R"({"enum": []})", "enum"},
      {R"({"enum": [1], "type": "string"})", "enum"},
      {R"({"type": "object", "properties": {"a": {}}, "maxProperties": 0})", "maxProperties"},
      {R"({"type": "object", "properties": {"a": {}}, "patternProperties": {"x": {}}})", "patternProperties"},
      {R"({"type": "object", "minProperties": 2})", "minProperties"},
      {R"({"allOf": [{"type": "integer"}, {"type": "string"}]})", "type"},
      {R"({"anyOf": []})", "anyOf"},
      {R"({"properties": {"a": 3}})", "properties.a"},
      {"false", ""},
  };
  for (const auto& [schema, path] : cases) {
    try {
      grammar_of(schema);
      ADD_FAILURE() << schema << " was taken";
    } catch (const GrammarError& error) {
      EXPECT_EQ(error.path, path) << schema << ": " << error.what();
    }
  }
}

TEST(JsonSchema, NoGrammarForSchemasThatOnlyReferToThemselves) {
  const std::string grammar = grammar_of(R"({"$ref": "#"})");
  EXPECT_THROW(obeys(grammar, "1"), GrammarError);
}

}  // namespace
}  // namespace smartkv
