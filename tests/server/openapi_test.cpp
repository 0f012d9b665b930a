// Compares /openapi.json with the routes that exist, and with what the parser accepts.
#include "server/openai/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <regex>
#include <set>

#include "server/openai/field_table.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using openai::Body;
using openai::body_schema;
using ::testing::HasSubstr;
using ::testing::Not;

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Returns the routes, such as "GET /v1/models/*".
std::set<std::string> routed(http::Service& service) {
  std::set<std::string> places;
  for (const http::Route& route : http::make_routes(service)) {
    places.insert(route.method + ' ' + (route.path.starts_with("/playground/") ? "/playground/*" : route.path));
  }
  return places;
}

// Returns the route of an operation, such as "GET /v1/models/*".
std::string place(const std::string& method, const std::string& path) {
  return upper(method) + ' ' + std::regex_replace(path, std::regex(R"(\{\w+\})"), "*");
}

std::set<std::string> documented() {
  std::set<std::string> places;
  for (const auto& [path, operations] : openai::openapi()["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) places.insert(place(method, path));
  }
  return places;
}

TEST(OpenApi, NamesEveryRouteAndNoOther) {
  TestServer server;
  EXPECT_EQ(routed(server.service), documented());
}

TEST(OpenApi, SaysWhichRoutesNeedAKey) {
  TestServer server({.api_key = "secret"});
  std::map<std::string, bool> open;
  for (const http::Route& route : http::make_routes(server.service)) open[route.method + ' ' + route.path] = route.open;
  for (const auto& [path, operations] : openai::openapi()["paths"].items()) {
    if (path.starts_with("/playground/")) continue;
    for (const auto& [method, operation] : operations.items()) {
      EXPECT_EQ(operation["security"].size(), open.at(place(method, path)) ? 1u : 3u) << path;
    }
  }
  EXPECT_EQ(server.client().Get("/openapi.json")->status, 200);
}

TEST(OpenApi, EveryReferenceLeadsSomewhere) {
  const Json& document = openai::openapi();
  const std::string text = document.dump();
  const std::regex reference(R"re("\$ref":"#/components/schemas/(\w+)")re");
  int found = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), reference), end; it != end; ++it, ++found) {
    EXPECT_TRUE(document["components"]["schemas"].contains((*it)[1].str())) << (*it)[1];
  }
  EXPECT_GT(found, 20);
}

// Returns a value that the schema of a field does not allow.
Json outside(const Json& schema) {
  if (schema.contains("maximum") && schema.value("type", "") != "array") return schema["maximum"].get<double>() * 2 + 5;
  const std::string text = schema.dump();
  return text.find("\"object\"") == text.npos || schema.value("type", Json()) == "array" ? Json::object() : Json(true);
}

struct Documented {
  Body body;
  const char* path;
  Json least;
};

TEST(OpenApi, WhatASchemaNamesTheParserReadsAndChecks) {
  TestServer server;
  const std::vector<Documented> bodies = {
      {Body::kChat, "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}}},
      {Body::kCompletions, "/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 2}}},
      {Body::kResponses, "/v1/responses", {{"input", "Hi"}, {"max_output_tokens", 2}}},
      {Body::kMessages, "/v1/messages", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}}},
      {Body::kCountTokens, "/v1/messages/count_tokens", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}}},
      {Body::kDetokenize, "/detokenize", {{"tokens", {72, 105}}}},
  };
  for (const Documented& one : bodies) {
    EXPECT_EQ(server.post(one.path, one.least.dump())->status, 200) << one.path;
    for (const auto& [name, schema] : body_schema(one.body)["properties"].items()) {
      if (!schema.contains("type") && !schema.contains("enum") && !schema.contains("anyOf") &&
          !schema.contains("const"))
        continue;
      Json body = one.least;
      body[name] = outside(schema);
      const auto answer = server.post(one.path, body.dump());
      EXPECT_THAT(answer->status, ::testing::AnyOf(400, 404)) << one.path << ' ' << body;
      EXPECT_THAT(answer->body, Not(HasSubstr("Unrecognized"))) << one.path << ' ' << body;
    }
    Json unknown = one.least;
    unknown["no_such_field"] = 1;
    EXPECT_THAT(server.post(one.path, unknown.dump())->body, HasSubstr("Unrecognized")) << one.path;
  }
}

TEST(OpenApi, AFieldThatNoSchemaNamesIsNotRead) {
  const Json body = Json::object();
  openai::FieldReader fields(body, &body_schema(Body::kDetokenize));
  EXPECT_THROW(fields.find("messages"), std::logic_error);
  EXPECT_EQ(fields.find("tokens"), nullptr);
}

TEST(OpenApi, MembersThatNeedNotBeThereMayBeNull) {
  const Json schema = openai::with_nulls(body_schema(Body::kChat));
  const auto is_nullable = [](const Json& property) {
    return property.contains("anyOf") && property["anyOf"].back() == Json{{"type", "null"}};
  };
  EXPECT_TRUE(is_nullable(schema["properties"]["temperature"]));
  EXPECT_FALSE(is_nullable(schema["properties"]["messages"]));
  EXPECT_TRUE(is_nullable(schema["properties"]["messages"]["items"]["properties"]["content"]));
  EXPECT_FALSE(is_nullable(schema["properties"]["messages"]["items"]["properties"]["role"]));
}

}  // namespace
}  // namespace smartkv::test
