// The Messages API over real sockets: routes, headers, streams, and errors in Anthropic's shape.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::HasSubstr;

const std::string kHi = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])";
const std::string kMessage = kHi + "}", kStreamed = kHi + R"(, "stream": true})";

void expect_their_error(const httplib::Result& result, int status, const std::string& type) {
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  const Json body = Json::parse(result->body);
  EXPECT_EQ(body["type"], "error");
  EXPECT_EQ(body["error"]["type"], type);
  EXPECT_TRUE(body["error"]["message"].is_string());
  EXPECT_EQ(body["request_id"], result->get_header_value("request-id"));
  EXPECT_TRUE(body["request_id"].get<std::string>().starts_with("req_"));
}

// Returns the events of a stream, whose names have to be the types of their data.
std::vector<Json> their_events(const std::string& body) {
  std::vector<Json> events;
  std::istringstream lines(body);
  for (std::string name, data, blank; std::getline(lines, name);) {
    std::getline(lines, data);
    std::getline(lines, blank);
    EXPECT_TRUE(name.starts_with("event: ") && data.starts_with("data: ") && blank.empty()) << name << data;
    events.push_back(Json::parse(data.substr(6)));
    EXPECT_EQ(events.back()["type"], name.substr(7));
  }
  return events;
}

TEST(MessagesHttp, AnswersWholeAndStreamed) {
  TestServer server;
  for (const char* path : {"/v1/messages", "/messages", "/v1/messages/", "/v1/messages?beta=true"}) {
    const auto answer = server.post(path, kMessage);
    EXPECT_EQ(answer->status, 200) << path;
    const Json message = Json::parse(answer->body);
    EXPECT_EQ(message["content"][0]["text"], "Paris.");
    EXPECT_EQ(answer->get_header_value("request-id"), "req_" + message["id"].get<std::string>().substr(4));
  }
  const auto streamed = server.post("/v1/messages", kStreamed);
  EXPECT_EQ(streamed->get_header_value("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(streamed->get_header_value("request-id").starts_with("req_"));
  const std::vector<Json> events = their_events(streamed->body);
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_EQ(events.back()["type"], "message_stop");
}

TEST(MessagesHttp, CountsTokens) {
  TestServer server;
  const auto answer = server.post("/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(Json::parse(answer->body), (Json{{"input_tokens", 18}}));
  EXPECT_TRUE(server.engine.submitted().empty());
}

TEST(MessagesHttp, ErrorsHaveTheirTypesAndStatuses) {
  TestServer server({.max_body_bytes = 4096});
  auto client = server.client();
  expect_their_error(server.post("/v1/messages", "{"), 400, "invalid_request_error");
  expect_their_error(server.post("/v1/messages", R"({"max_tokens": 9, "messages": [], "stream": true})"), 400,
                     "invalid_request_error");
  expect_their_error(server.post("/v1/messages/count_tokens", "{}"), 400, "invalid_request_error");
  expect_their_error(server.post("/v1/messages", kHi + R"(, "model": "claude"})"), 404, "not_found_error");
  expect_their_error(server.post("/v1/messages/batches", "{}"), 404, "not_found_error");
  expect_their_error(client.Get("/v1/messages"), 405, "invalid_request_error");
  expect_their_error(client.Post("/v1/messages", "a=b", "application/x-www-form-urlencoded"), 415,
                     "invalid_request_error");
  expect_their_error(server.post("/v1/messages", kHi + R"(, "system": ")" + std::string(5000, 'a') + "\"}"), 413,
                     "request_too_large");
  for (const char* path : {"/v1/models/none", "/v1/nothing"}) {
    expect_their_error(client.Get(path, {{"anthropic-version", "2023-06-01"}}), 404, "not_found_error");
    EXPECT_TRUE(Json::parse(client.Get(path)->body)["error"].contains("param")) << path;
  }
}

TEST(MessagesHttp, ErrorsOfTheEngineToo) {
  TestServer server;
  const auto with = [&](const RequestError& error) {
    server.engine.set_submit_error(error);
    return server.post("/v1/messages", kStreamed);
  };
  const auto busy = with(RequestError(RequestError::Kind::kOverloaded, "", "full", 7));
  expect_their_error(busy, 529, "overloaded_error");
  EXPECT_EQ(busy->get_header_value("Retry-After"), "7");
  expect_their_error(with(RequestError(RequestError::Kind::kTooLarge, "max_tokens", "never fits")), 413,
                     "request_too_large");
  expect_their_error(with(RequestError(RequestError::Kind::kLost, "", "gone")), 529, "overloaded_error");
  const auto named = with(RequestError(RequestError::Kind::kInvalid, "stop", "'stop': wrong"));
  expect_their_error(named, 400, "invalid_request_error");
  EXPECT_EQ(Json::parse(named->body)["error"]["message"], "'stop_sequences': wrong");
  server.engine.set_submit_error(std::nullopt);
  server.engine.set_context_length(5);
  const auto long_prompt = server.post("/v1/messages", kMessage);
  expect_their_error(long_prompt, 400, "invalid_request_error");
  EXPECT_THAT(long_prompt->body, HasSubstr("prompt is too long: "));
}

TEST(MessagesHttp, AStreamThatFailsEndsWithAnError) {
  TestServer server;
  server.engine.set_answer({"Pa", "r"}, FinishReason::kError);
  const auto streamed = server.stream("/v1/messages", kStreamed);
  EXPECT_EQ(streamed.status, 200);
  EXPECT_FALSE(streamed.whole);
  const Json error = their_events(streamed.body).back();
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "api_error");
  EXPECT_EQ(error["error"]["message"], "the model broke");
  EXPECT_TRUE(error["request_id"].get<std::string>().starts_with("req_"));
  server.engine.set_answer({"Pa"}, FinishReason::kOutOfMemory);
  expect_their_error(server.post("/v1/messages", kMessage), 529, "overloaded_error");
}

TEST(MessagesHttp, SilenceIsFilledWithPings) {
  TestServer server;
  server.service.sse_ping = std::chrono::seconds(1);
  server.engine.hold_after(1);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/messages", kStreamed));
  EXPECT_THAT(connection.read_until("content_block_delta"), HasSubstr("message_start"));
  EXPECT_THAT(connection.read_until("event: ping\ndata: {\"type\": \"ping\"}\n\n"), HasSubstr("event: ping"));
  server.engine.release();
  EXPECT_THAT(connection.read_until("message_stop\"}"), HasSubstr("message_delta"));
}

TEST(MessagesHttp, TakesKeysInEitherHeader) {
  TestServer server({.api_key = "secret"});
  auto client = server.client();
  const auto post = [&](const httplib::Headers& headers) {
    return client.Post("/v1/messages", headers, kMessage, "application/json");
  };
  EXPECT_EQ(post({{"x-api-key", "secret"}})->status, 200);
  EXPECT_EQ(post({{"Authorization", "Bearer secret"}})->status, 200);
  expect_their_error(post({}), 401, "authentication_error");
  expect_their_error(post({{"x-api-key", "other"}}), 401, "authentication_error");
  expect_their_error(post({{"Authorization", "Bearer other"}}), 401, "authentication_error");
}

TEST(MessagesHttp, LimitsOfAKeyAre429) {
  const std::string file = ::testing::TempDir() + "messages_keys_" + std::to_string(::getpid());
  std::ofstream(file) << R"({"alice": {"key": "sk-0123456789abcdef", "tokens_per_minute": 5}})";
  TestServer server({.api_keys_file = file});
  std::remove(file.c_str());
  auto client = server.client();
  const httplib::Headers key = {{"x-api-key", "sk-0123456789abcdef"}};
  EXPECT_EQ(client.Post("/v1/messages", key, kMessage, "application/json")->status, 200);
  const auto refused = client.Post("/v1/messages", key, kMessage, "application/json");
  expect_their_error(refused, 429, "rate_limit_error");
  EXPECT_FALSE(refused->get_header_value("Retry-After").empty());
}

TEST(MessagesHttp, ADrainingServerIsOverloaded) {
  TestServer server;
  server.server.begin_drain();
  expect_their_error(server.post("/v1/messages", kMessage), 529, "overloaded_error");
}

TEST(MessagesHttp, VersionsOfTheApiAreDates) {
  TestServer server;
  auto client = server.client();
  const auto post = [&](const httplib::Headers& headers) {
    return client.Post("/v1/messages", headers, kMessage, "application/json");
  };
  for (const char* version : {"2023-06-01", "2026-10-21"}) {
    EXPECT_EQ(post({{"anthropic-version", version}, {"anthropic-beta", "oauth-2025-04-20,any"}})->status, 200)
        << version;
  }
  for (const char* version : {"2023-01-01", "latest", "2026-10-2x", "2026/10/21"}) {
    const auto other = post({{"anthropic-version", version}});
    expect_their_error(other, 400, "invalid_request_error");
    EXPECT_THAT(other->body, HasSubstr("expected a date from 2023-06-01 on, found ")) << version;
  }
}

TEST(MessagesHttp, LeavingAStreamCancelsIt) {
  TestServer server;
  server.engine.hold_after(1);
  {
    RawConnection connection(server.port);
    connection.send(post_text("/v1/messages", kStreamed));
    connection.read_until("content_block_delta");
    EXPECT_TRUE(server.engine.wait_for_live_streams(1));
  }
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
}

TEST(MessagesHttp, ModelsHaveTheMembersOfBothApis) {
  TestServer server;
  const Json list = Json::parse(server.client().Get("/v1/models", {{"anthropic-version", "2023-06-01"}})->body);
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], "fake");
  EXPECT_EQ(list["last_id"], "alias");
  const Json model = Json::parse(server.client().Get("/v1/models/alias")->body);
  EXPECT_EQ(model, list["data"][1]);
  EXPECT_EQ(model["type"], "model");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["id"], "alias");
  EXPECT_EQ(model["display_name"], "alias");
  EXPECT_EQ(model["created_at"], "1970-01-01T00:00:01Z");
}

}  // namespace
}  // namespace smartkv::test
