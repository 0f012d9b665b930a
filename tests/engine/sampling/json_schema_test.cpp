// The texts that the grammar of a JSON schema accepts, and the keyword that each refusal names.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <span>

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

struct SchemaCase {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

void check_schemas(std::span<const SchemaCase> cases) {
  for (const SchemaCase& one : cases) {
    std::string grammar;
    ASSERT_NO_THROW(grammar = grammar_of(one.schema)) << one.schema;
    for (const std::string& text : one.valid)
      EXPECT_TRUE(obeys(grammar, text)) << one.schema << " should take " << text << "\n" << grammar;
    for (const std::string& text : one.invalid)
      EXPECT_FALSE(obeys(grammar, text)) << one.schema << " should not take " << text << "\n" << grammar;
  }
}

TEST(JsonSchema, TakesWhatValidates) {
  const SchemaCase cases[] = {
      {R"({"type": "string"})",
       {R"("")", R"("a \"b\" \u00e9 \ud83d\ude00 é")"},
       {"a", R"("\ud83d")", "\"\n\"", R"("a" )"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("éüñ")"}, {R"("a")", R"("abcd")"}},
      {R"({"type": "string", "minLength": 2})", {R"("ab\"\n")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^a+$"})", {R"("aa")"}, {R"("")", R"("ab")"}},
      {R"({"type": "string", "pattern": "b"})", {R"("b")", R"("abc")"}, {R"("ac")"}},
      {R"({"type": "string", "pattern": "^a\"\\\\$"})", {R"("a\"\\")"}, {R"("a"\")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("2023-04-31")"}},
      {R"({"type": "integer"})", {"0", "-7", "123"}, {"-0", "01", "1.0", "1e3"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})",
       {"-12", "-9", "0", "9", "99", "104"},
       {"-13", "105", "1000"}},
      {R"({"type": "number", "minimum": 0.25, "maximum": 3})",
       {"0.25", "0.3", "1", "2.999", "3", "3.0"},
       {"0", "0.2", "3.01", "-1", "1e0"}},
      {R"({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0})",
       {"-0.1", "-0.49", "-0.0001"},
       {"-0.5", "0", "-0.0", "-0.51"}},
      {R"({"type": ["boolean", "null"]})", {"true", "null"}, {"0"}},
      {R"({"enum": ["a", 1, null, {"k": [1]}]})", {"\"a\"", "1", "null", R"({"k":[1]})"}, {"\"b\""}},
      {R"({"const": "x\ny"})", {R"("x\ny")"}, {R"("x")"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2,3]", "[\n  1\n]"},
       {"[]", "[1,2,3,4]", "[1,]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})",
       {"[1,null]"},
       {"[1,null,2]", "[null]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "object"})", {"{}", R"({"a": [1, {"b": null}], "c": -1.5e3})"}, {R"({"a"})", "[]"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}}, "required": ["b"]})",
       {R"({"b":null})", R"({"a": 1, "b": null, "c": true})", R"({"b":null,"c":false})"},
       {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"ab":null,"a":1,"abc":2})", R"({"x":1})"},
       {R"({"x":1,"ab":2})", R"({"ab":1})", R"({"x":null})"}},
      {R"({"type": "object", "properties": {}, "required": ["q"]})", {R"({"q": [1]})"}, {"{}"}},
      {R"({"type": "object", "patternProperties": {"^[ab]+$": {"type": "integer"}}})",
       {"{}", R"({"ab":1})"},
       {R"({"c":1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["n", "s"]}, "additionalProperties": {"type": "integer"}, "minProperties": 1})",
       {R"({"n":1})", R"({"s":1,"n":2})"},
       {"{}", R"({"x":1})"}},
      {R"({"properties": {"a\"b": {"type": "null"}}})", {R"({"a\"b":null})"}, {R"({"a"b":null})"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"5", "\"x\""}, {"\"xy\""}},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":null})", R"({"b":null})"},
       {"{}"}},
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "null"}}, "required": ["k"]},
                     {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]}]})",
       {R"({"k":"x","v":null})", R"({"k":"y"})"},
       {R"({"k":"z"})", R"({"k":"y","v":null})"}},
      {R"({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]})", {"3", "5"}, {"2", "6", "\"a\""}},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}})", {"1"}, {"\"a\""}},
      {R"({"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}, "$ref": "#/$defs/n"})",
       {R"({"next":null})", R"({"next":{"next":null}})"},
       {"{}"}},
      {R"({"properties": {"a": {"$ref": "#/$defs/a", "description": "x", "minimum": 2}}, "$defs": {"a": {"type": "integer"}}})",
       {R"({"a":2})"},
       {R"({"a":1})"}},
      {"true", {"1", "[]", "\"a\""}, {""}},
  };
  check_schemas(cases);
}

// Schemas as pydantic, zod, OpenAPI generators and editors write them.
TEST(JsonSchema, TakesWhatFrameworksWrite) {
  const SchemaCase cases[] = {
      {R"({"const": "cat", "enum": ["cat"]})", {"\"cat\""}, {"\"dog\""}},
      {R"({"const": "cat", "enum": ["cat", "dog"], "type": "string"})", {"\"cat\""}, {"\"dog\""}},
      {R"({"enum": ["a", "abcd"], "maxLength": 3})", {"\"a\""}, {"\"abcd\""}},
      {R"({"enum": ["é", "ab"], "maxLength": 1})", {"\"é\""}, {"\"ab\""}},
      {R"({"enum": ["ab", "ba"], "type": "string", "pattern": "^a"})", {"\"ab\""}, {"\"ba\""}},
      {R"({"enum": [1, 2, 5], "minimum": 2, "exclusiveMaximum": 5})", {"2"}, {"1", "5"}},
      {R"({"enum": ["2024-02-30", "2024-02-29"], "format": "date"})", {"\"2024-02-29\""}, {"\"2024-02-30\""}},
      {R"({"enum": [[1, 1], [1, 2]], "uniqueItems": true})", {"[1,2]"}, {"[1,1]"}},
      {R"({"enum": ["a", 1, true], "anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "null"}]})",
       {"\"a\"", "true"},
       {"1", "null"}},
      {R"({"type": "integer", "nullable": true, "minimum": 3})", {"3", "null"}, {"2"}},
      {R"({"enum": ["a"], "nullable": true})", {"\"a\"", "null"}, {"\"b\""}},
      {R"({"properties": {"a": {"$ref": "#/definitions/a", "nullable": true}}, "required": ["a"], "definitions": {"a": {"type": "integer"}}})",
       {R"({"a":1})", R"({"a":null})"},
       {R"({"a":""})"}},
      {R"({"allOf": [{"$ref": "#/$defs/a"}], "nullable": true, "$defs": {"a": {"type": "boolean"}}})",
       {"true", "null"},
       {"1"}},
      {R"({"type": "integer", "nullable": false})", {"1"}, {"null"}},
      {R"({"type": "integer", "multipleOf": 5})", {"0", "5", "-10", "125"}, {"3", "12"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 20})", {"-14", "0", "7"}, {"-21", "1", "21"}},
      {R"({"type": "number", "multipleOf": 0.01})", {"1", "1.5", "-0.25"}, {"1.005", "1e5"}},
      {R"({"type": "number", "multipleOf": 0.01, "minimum": 0})", {"0", "19.99"}, {"-1", "0.001"}},
      {R"({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2})", {"0", "0.5", "2"}, {"0.25", "2.5"}},
      {R"({"type": "number", "multipleOf": 1})", {"3"}, {"3.5"}},
      {R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 1000})",
       {"[]", "[1,2]"},
       {"[null]"}},
      {R"({"type": "string", "markdownDescription": "**x**", "enumDescriptions": [], "$anchor": "a", "tsType": "X"})",
       {"\"\""},
       {"1"}},
      {R"({"$id": "https://example.com/root.json", "properties": {"a": {"$ref": "item.json"}, "b": {"$ref": "#leaf"},
           "c": {"$ref": "https://example.com/item.json#/properties/n"}}, "required": ["a", "b", "c"],
           "$defs": {"i": {"$id": "item.json", "type": "object", "properties": {"n": {"type": "null"}}, "required": ["n"]},
                     "l": {"$anchor": "leaf", "type": "boolean"}}})",
       {R"({"a":{"n":null},"b":true,"c":null})"},
       {R"({"a":{},"b":true,"c":null})"}},
      {R"({"$ref": "#/$defs/List%3CItem%3E", "$defs": {"List<Item>": {"type": "array", "items": {"type": "integer"}}}})",
       {"[1]"},
       {"1"}},
      {R"({"type": "string", "format": "uuid", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"})",
       {"\"01234567-89ab-4def-8123-456789abcdef\""},
       {"\"01234567-89ab-1def-8123-456789abcdef\""}},
      {R"x({"type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})x",
       {"\"a.b@example.com\""},
       {"\"a..b@example.com\"", "\"a\""}},
      {R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})", {"\"https://a.b/c\""}, {"\"\""}},
      {R"({"type": "string", "maxLength": 500})",
       {"\"\"", '"' + std::string(500, 'x') + '"'},
       {'"' + std::string(501, 'x') + '"'}},
      {R"({"type": "string", "minLength": 300, "maxLength": 5000})",
       {'"' + std::string(300, 'x') + '"'},
       {'"' + std::string(299, 'x') + '"'}},
      {R"({"type": "string", "format": "int64"})", {"\"x\""}, {"1"}},
      {R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})",
       {"0", "-7", "123456789012345678"},
       {"1.5"}},
      {R"({"type": "integer", "maximum": 18446744073709551615, "exclusiveMinimum": 0})", {"1"}, {"0"}},
      {R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
       {"9007199254740991"},
       {"9007199254740992"}},
      {R"({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308})",
       {"0", "-1.5", "1000000"},
       {"null"}},
      {R"({"type": "number", "maximum": 1e300})", {"5", "-5"}, {}},
      {R"({"type": "number", "exclusiveMinimum": 5e-324, "maximum": 1})", {"0.1", "1"}, {"0", "-0.1", "1.1"}},
      {R"({"type": "number", "minimum": 0.12345678901234567, "maximum": 0.2})", {"0.15", "0.2"}, {"0.12", "0.21"}},
      {R"({"type": "number", "minimum": 0, "exclusiveMinimum": true})", {"0.5", "1"}, {"0"}},
      {R"({"type": "integer", "maximum": 3, "exclusiveMaximum": false})", {"3"}, {"4"}},
      {R"({"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "additionalItems": false})",
       {"[1,null]"},
       {"[null]", "[1,null,1]"}},
      {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"a":1})"}},
      {R"({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}], "type": ["string", "integer"]})",
       {"\"ab\"", "1"},
       {"\"abc\"", "null"}},
      {R"({"type": "string", "anyOf": [{"pattern": "^a$"}, {"type": "null"}]})", {"\"a\""}, {"null"}},
  };
  check_schemas(cases);
}

TEST(JsonSchema, WhiteSpaceIsBoundedAsInLlamaCpp) {
  const std::string grammar = grammar_of(R"({"type": "array", "items": {"type": "integer"}})");
  for (const std::string& space :
       {std::string(), std::string(" "), std::string("\n"), "\n\n" + std::string(20, ' '), std::string("\n\t ")}) {
    EXPECT_TRUE(obeys(grammar, "[" + space + "1," + space + "2" + space + "]")) << '"' << space << '"';
  }
  for (const std::string& space : {std::string("  "), std::string("\t"), "\n" + std::string(21, ' '),
                                   std::string("\n\n\n"), std::string("\n \n")}) {
    EXPECT_FALSE(obeys(grammar, "[" + space + "1]")) << '"' << space << '"';
  }
}

// The schema of the issue. Converted naively, it becomes 2^40 schemas.
TEST(JsonSchema, SchemasThatDoubleStaySmall) {
  const auto doubled = [](const std::function<Json(const Json& reference)>& of) {
    Json schema = {
        {"$ref", "#/$defs/d40"},
        {"$defs", {{"d0", {{"type", "object"}, {"properties", {{"x", {{"type", "integer"}}}}}, {"required", {"x"}}}}}}};
    for (int i = 1; i <= 40; ++i)
      schema["$defs"]["d" + std::to_string(i)] = of({{"$ref", "#/$defs/d" + std::to_string(i - 1)}});
    return schema.dump();
  };
  const std::string beside = doubled([](const Json& reference) {
    Json left = reference, right = reference;
    left["minProperties"] = 0;
    right["type"] = "object";
    return Json{{"type", "object"}, {"properties", {{"a", left}, {"b", right}}}};
  });
  EXPECT_LT(grammar_of(beside.c_str()).size(), 100'000u);
  const std::string both = doubled([](const Json& reference) { return Json{{"allOf", {reference, reference}}}; });
  EXPECT_TRUE(obeys(grammar_of(both.c_str()), R"({"x":1})"));
}

// Schemas that do grow must soon end in an error.
TEST(JsonSchema, ConversionIsBounded) {
  const auto too_large = [](const Json& schema) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(grammar_of(schema.dump().c_str()), TooLargeError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  };
  Json growing = {{"$ref", "#/$defs/d40"}, {"$defs", {{"d0", {{"type", "object"}}}}}};
  for (int i = 1; i <= 40; ++i) {
    const Json below = {{"$ref", "#/$defs/d" + std::to_string(i - 1)}};
    const std::string own = std::to_string(i);
    growing["$defs"]["d" + own] = {
        {"allOf",
         {{{"properties", {{"a" + own, below}, {"s", below}}}},
          {{"properties", {{"b" + own, below}, {"s", {{"allOf", {below, {{"title", own}}}}}}}}}}}};
  }
  Json options = Json::array(), values = Json::array();
  for (int i = 0; i < 4000; ++i) {
    options.push_back({{"type", "object"}, {"properties", {{"kind", {{"const", i}}}}}, {"required", {"kind"}}});
    values.push_back(std::string(40, 'a') + std::to_string(i));
  }
  too_large({{"oneOf", options}});
  too_large({{"allOf", {{{"enum", values}}, {{"enum", values}}}}});
  try {  // must not take exponential time, whether it is accepted or not
    grammar_of(growing.dump().c_str());
  } catch (const TooLargeError&) {
  }
  std::string names, strings;
  for (int i = 0; i < 100'000; ++i) names += (i == 0 ? "\"" : ",\"") + std::to_string(i) + '"';
  for (int i = 0; i < 100'000; ++i) strings += i == 0 ? "\"string\"" : ",\"string\"";
  const Json integers = Json::parse('[' + names + ']');
  const Json some_integers(std::vector<Json>(integers.begin(), integers.begin() + 10'000));
  too_large({{"type", "object"}, {"required", integers}});                                    // names are looked up
  too_large({{"enum", integers}, {"pattern", "^(" + std::string(2000, 'a') + "|[0-9]+)$"}});  // compiled for each value
  too_large({{"enum", integers}, {"type", Json::parse('[' + strings + ']')}});                // read for each value
  too_large({{"oneOf", {{{"enum", some_integers}}, {{"enum", values}}}}});  // compared with each other
  EXPECT_EQ(grammar_of(("{\"type\": [" + strings + "]}").c_str()), grammar_of(R"({"type": "string"})"));
  const Json long_name = {{"properties", {{std::string(100'000, 'a'), true}}}, {"additionalProperties", true}};
  EXPECT_THROW(grammar_of(long_name.dump().c_str()), GrammarError);
  EXPECT_THROW(grammar_of(Json{{"pattern", std::string(100'000, 'a')}}.dump().c_str()), GrammarError);
}

TEST(JsonSchema, LeavesOutOnlyWhatNoGrammarSays) {
  const auto lenient = [](const char* schema) {
    EbnfGrammar grammar;
    return grammar.text(add_json_schema(Json::parse(schema), &grammar, Unsupported::kLeftOut));
  };
  const std::string grammar =
      lenient(R"x({"type": "object", "required": ["n", "s", "o"], "dependentRequired": {"n": ["s"]}, "properties": {
      "n": {"type": "integer", "not": {"const": 3}}, "s": {"type": "string", "pattern": "a(?=b)"},
      "o": {"type": "object", "properties": {"k": {"enum": ["x"]}, "v": {"if": {}, "type": "null"}}, "required": ["k", "v"], "contains": {}}}})x");
  EXPECT_TRUE(obeys(grammar, R"({"n":3,"s":"any","o":{"k":"x","v":null}})"));
  for (const char* text :
       {R"({"n":"3","s":"any","o":{"k":"x","v":null}})", R"({"n":3,"s":1,"o":{"k":"x","v":null}})",
        R"({"n":3,"s":"any","o":{"k":"y","v":null}})", R"({"n":3,"s":"any","o":{"k":"x","v":1}})", R"({"n":3})"}) {
    EXPECT_FALSE(obeys(grammar, text)) << text;
  }
  EXPECT_TRUE(obeys(lenient(R"({"type": "object", "properties": {"a": {"$ref": "other.json"}}, "required": ["a"]})"),
                    R"({"a":[1]})"));
  const std::string conflict = lenient(R"({"type": "object", "allOf": [{"type": "string"}]})");
  EXPECT_TRUE(obeys(conflict, "{}"));
  EXPECT_FALSE(obeys(conflict, "\"a\""));
}

TEST(JsonSchema, RefusalsNameTheKeyword) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "not"},
      {R"({"properties": {"a": {"type": "array", "contains": {}}}})", "properties.a.contains"},
      {R"({"properties": {"a": {"type": "array", "uniqueItems": 1}}})", "properties.a.uniqueItems"},
      {R"({"items": {"multipleOf": 0}})", "items.multipleOf"},
      {R"({"type": "number", "minimum": 1e300})", "minimum"},
      {R"({"type": "integer", "exclusiveMinimum": 1e300})", "exclusiveMinimum"},
      {R"({"type": "number", "maximum": -1e300})", "maximum"},
      {R"({"type": "number", "maximum": "x"})", "maximum"},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6})", "multipleOf"},
      {R"({"enum": ["abc"], "maxLength": 2})", "enum"},
      {R"({"enum": ["abc"], "pattern": "("})", "pattern"},
      {R"({"$ref": "#nowhere"})", "$ref"},
      {R"({"type": "object", "dependentRequired": {}})", "dependentRequired"},
      {R"({"type": "strange"})", "type"},
      {R"({"type": "string", "format": 3})", "format"},
      {R"x({"type": "string", "pattern": "a(?=b)"})x", "pattern"},
      {R"({"type": "string", "pattern": "^a*$", "maxLength": 3})", "maxLength"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength"},
      {R"({"type": "string", "minLength": 100000})", "minLength"},
      {R"({"type": "string", "maxLength": -1})", "maxLength"},
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
