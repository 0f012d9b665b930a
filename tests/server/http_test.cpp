// Connections, refusals, clients that leave, and draining, over real sockets.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <future>
#include <thread>

#include "engine/log.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

const std::string kStream = R"({"messages": [{"role": "user", "content": "hi"}], "stream": true})";
const std::string kWhole = R"({"messages": [{"role": "user", "content": "hi"}]})";

void expect_error(const httplib::Result& result, int status, const std::string& code) {
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  const Json error = Json::parse(result->body).at("error");
  EXPECT_EQ(error.size(), 4u);
  EXPECT_EQ(error["code"], code.empty() ? Json(nullptr) : Json(code));
  EXPECT_TRUE(error["message"].is_string() && error["type"].is_string() && error.contains("param"));
}

TEST(HttpTest, UnknownRoutesAndWrongMethods) {
  TestServer server;
  auto client = server.client();
  expect_error(client.Get("/v2"), 404, "unknown_url");
  expect_error(client.Post("/nothing", "{}", "application/json"), 404, "unknown_url");
  const auto wrong = client.Get("/v1/completions");
  expect_error(wrong, 405, "method_not_allowed");
  EXPECT_EQ(wrong->get_header_value("Allow"), "POST");
  expect_error(client.Delete("/v1/models/fake"), 405, "method_not_allowed");
  EXPECT_EQ(client.Put("/v1/responses/resp_1", "{}", "application/json")->get_header_value("Allow"), "GET, DELETE");
  const auto inner = client.Delete("/v1/responses/resp_1/input_items");
  expect_error(inner, 405, "method_not_allowed");
  EXPECT_EQ(inner->get_header_value("Allow"), "GET");
  expect_error(client.Put("/v1/completions", "{}", "application/json"), 405, "method_not_allowed");
  EXPECT_EQ(client.Head("/health")->status, 200);
}

TEST(HttpTest, LargeTextsAreTokenizedInTurn) {
  TestServer server;
  const std::string body = R"({"prompt": ")" + std::string(size_t{2} << 20, 'a') + "\"}";
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(
        [&] { EXPECT_EQ(Json::parse(server.post("/tokenize", body)->body)["count"], int64_t{2} << 20); });
  }
  for (std::thread& client : clients) client.join();
}

TEST(HttpTest, RoutesGoByTheNamesThatClientsUse) {
  TestServer server;
  auto client = server.client();
  for (const char* path :
       {"/v1/models", "/v1/models/", "/models", "/models/", "/v1/models/fake", "/models/fake/", "/health/"}) {
    EXPECT_EQ(client.Get(path)->status, 200) << path;
  }
  for (const char* path :
       {"/v1/chat/completions/", "/chat/completions", "/chat/completions/", "/v1/chat/completions?a=b"}) {
    EXPECT_EQ(Json::parse(server.post(path, kWhole)->body)["object"], "chat.completion") << path;
  }
  EXPECT_EQ(Json::parse(server.post("/completions", R"({"prompt": "a"})")->body)["object"], "text_completion");
  EXPECT_EQ(Json::parse(server.post("/responses", R"({"input": "a"})")->body)["object"], "response");
  expect_error(client.Get("/v1"), 404, "unknown_url");
  expect_error(client.Get("/v1/health"), 404, "unknown_url");
  expect_error(client.Get("/chat/completions"), 405, "method_not_allowed");
}

TEST(HttpTest, TargetsMayBeAbsolute) {
  TestServer server;
  for (const char* target : {"http://x/health", "HTTP://x:80/health/", "https://x/health?a=b", "http://x/v1/models",
                             "http://x", "http://x?a"}) {
    RawConnection connection(server.port);
    connection.send(std::string("GET ") + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_TRUE(connection.read_all().starts_with("HTTP/1.1 200")) << target;
  }
  RawConnection other(server.port);
  other.send("GET ftp://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(other.read_all().starts_with("HTTP/1.1 404"));
}

TEST(HttpTest, StreamsNameTheirEncoding) {
  TestServer server;
  for (const auto& [path, body] : {std::pair{"/v1/chat/completions", kStream.c_str()},
                                   std::pair{"/v1/responses", R"({"input": "a", "stream": true})"}}) {
    EXPECT_EQ(server.post(path, body)->get_header_value("Content-Type"), "text/event-stream; charset=utf-8") << path;
  }
}

TEST(HttpTest, MalformedRequests) {
  TestServer server;
  for (const char* request : {"nonsense\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n", "GET\r\n\r\n"}) {
    RawConnection connection(server.port);
    connection.send(request);
    EXPECT_TRUE(connection.read_all().starts_with("HTTP/1.1 400")) << request;
  }
  RawConnection length(server.port);
  length.send("POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n");
  EXPECT_TRUE(length.read_all().starts_with("HTTP/1.1 413"));
}

TEST(HttpTest, ErrorsBeforeTheStreamHaveTheirStatus) {
  TestServer server;
  expect_error(server.post("/v1/chat/completions", R"({"messages": [], "stream": true})"), 400, "");
  server.engine.set_context_length(5);
  expect_error(server.post("/v1/chat/completions", kStream), 400, "context_length_exceeded");
  server.engine.set_context_length(1000);
  server.engine.set_submit_error(RequestError(RequestError::Kind::kOverloaded, "", "full", 7));
  const auto busy = server.post("/v1/chat/completions", kStream);
  expect_error(busy, 429, "rate_limit_exceeded");
  EXPECT_EQ(busy->get_header_value("Retry-After"), "7");
  server.engine.set_submit_error(RequestError(RequestError::Kind::kTooLarge, "prompt", "never fits"));
  expect_error(server.post("/v1/chat/completions", kWhole), 413, "request_too_large");
  server.engine.set_submit_error(RequestError(RequestError::Kind::kInvalid, "kv_cache", "unknown policy"));
  EXPECT_EQ(Json::parse(server.post("/v1/chat/completions", kWhole)->body)["error"]["param"], "kv_cache");
}

TEST(HttpTest, ApiKey) {
  TestServer server({.api_key = "secret"});
  auto client = server.client();
  EXPECT_EQ(client.Get("/health")->status, 200);
  const auto missing = client.Get("/v1/models");
  expect_error(missing, 401, "invalid_api_key");
  EXPECT_EQ(missing->get_header_value("WWW-Authenticate"), "Bearer");
  for (const char* wrong : {"Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret"}) {
    expect_error(client.Get("/v1/models", {{"Authorization", wrong}}), 401, "invalid_api_key");
  }
  for (const char* right : {"Bearer secret", "bearer secret"}) {
    EXPECT_EQ(client.Get("/v1/models", {{"Authorization", right}})->status, 200);
  }
  EXPECT_EQ(client.Get("/v1/models", {{"X-Api-Key", "secret"}})->status, 200);
  expect_error(client.Get("/v1/models", {{"X-Api-Key", "secrets"}}), 401, "invalid_api_key");
}

TEST(HttpTest, BodyLimits) {
  TestServer server({.max_body_bytes = 100});
  expect_error(server.post("/v1/completions", std::string(101, ' ')), 413, "request_too_large");
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt": "a"})")->status, 200);
  expect_error(server.client().Post("/v1/completions", "a=b", "application/x-www-form-urlencoded"), 415, "");

  RawConnection chunked(server.port);  // announces no length, so it is cut off as it comes
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
  for (int i = 0; i < 20; ++i) chunked.send(chunk);
  EXPECT_TRUE(chunked.read_all().starts_with("HTTP/1.1 413"));
}

TEST(HttpTest, CorsOnlyWhenAskedFor) {
  TestServer closed, open({.cors_origin = "https://example.org"});
  EXPECT_FALSE(closed.client().Get("/health")->has_header("Access-Control-Allow-Origin"));
  EXPECT_EQ(closed.client().Options("/v1/models")->status, 405);
  EXPECT_EQ(open.client().Get("/health")->get_header_value("Access-Control-Allow-Origin"), "https://example.org");
  const auto preflight = open.client().Options("/v1/chat/completions");
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->get_header_value("Access-Control-Allow-Methods"), "POST");
  const auto wanting =
      open.client().Options("/v1/models", {{"Access-Control-Request-Headers", "x-stainless-os, authorization"}});
  EXPECT_EQ(wanting->get_header_value("Access-Control-Allow-Headers"), "x-stainless-os, authorization");
}

TEST(HttpTest, ConnectionsAreKept) {
  TestServer server;
  RawConnection connection(server.port);
  for (int i = 0; i < 20; ++i) {
    connection.send(post_text("/tokenize", R"({"prompt": "a"})"));
    EXPECT_NE(connection.read_until("}").find("[97]"), std::string::npos);
  }
  connection.send(post_text("/tokenize", R"({"prompt": "b"})") + "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string both = connection.read_all();
  EXPECT_NE(both.find("[98]"), both.npos);
  EXPECT_NE(both.find("\"ok\""), both.npos);
}

TEST(HttpTest, LeavingAStreamCancelsIt) {
  TestServer server;
  server.engine.hold_after(1);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/chat/completions", kStream));
  connection.read_until("Pa");
  EXPECT_EQ(server.engine.live_streams(), 1);
  connection.close();
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
}

TEST(HttpTest, LeavingAWholeAnswerCancelsIt) {
  TestServer server;
  server.engine.hold_after(0);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/chat/completions", kWhole));
  ASSERT_TRUE(server.engine.wait_for_live_streams(1));
  connection.close();
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
  server.server.wait_until_idle();
}

TEST(HttpTest, LeavingABatchCancelsAllOfIt) {
  TestServer server;
  server.engine.hold_after(0);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/completions", R"({"prompt": ["a", "b", "c"], "stream": true})"));
  ASSERT_TRUE(server.engine.wait_for_live_streams(3));
  connection.close();
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
}

TEST(HttpTest, ManyStreamsAtOnce) {
  TestServer server;
  server.engine.hold_after(1);
  std::vector<std::future<httplib::Result>> results;
  for (int i = 0; i < 16; ++i) {
    results.push_back(std::async(std::launch::async, [&] { return server.post("/v1/chat/completions", kStream); }));
  }
  ASSERT_TRUE(server.engine.wait_for_live_streams(16));
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  server.engine.release();
  for (auto& result : results) EXPECT_TRUE(result.get()->body.ends_with("data: [DONE]\n\n"));
}

TEST(HttpTest, DrainingFinishesWhatRuns) {
  TestServer server;
  server.engine.hold_after(1);
  auto running = std::async(std::launch::async, [&] { return server.post("/v1/chat/completions", kStream); });
  ASSERT_TRUE(server.engine.wait_for_live_streams(1));
  server.server.begin_drain();
  expect_error(server.post("/v1/chat/completions", kWhole), 503, "draining");
  const auto health = server.client().Get("/health");
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(Json::parse(health->body)["status"], "draining");
  EXPECT_EQ(server.client().Get("/metrics")->status, 200);
  server.engine.release();
  server.engine.drain();
  server.server.wait_until_idle();
  EXPECT_TRUE(running.get()->body.ends_with("data: [DONE]\n\n"));
  server.server.stop();
}

TEST(HttpTest, StoppingTellsStreamsAndCutsThem) {
  TestServer server;
  server.engine.hold_after(1);
  RawConnection stream(server.port), idle(server.port);
  stream.send(post_text("/v1/chat/completions", kStream));
  stream.read_until("Pa");
  server.engine.stop();
  const std::string rest = stream.read_all();
  EXPECT_NE(rest.find("\"error\""), rest.npos);
  EXPECT_EQ(rest.find("[DONE]"), rest.npos);
  EXPECT_EQ(rest.find("abort"), rest.npos);
  server.server.stop();
  EXPECT_EQ(idle.read_all(), "");
}

// A proxy, or a client that reads to the end, must see that the answer is not whole.
TEST(HttpTest, AStreamThatFailsNeverLooksComplete) {
  struct Case {
    FinishReason finish;
    const char* message;
    int status;
  };
  const std::string responses = R"({"input": "x", "stream": true, "store": false})";
  for (const Case& one :
       {Case{FinishReason::kError, "the model broke", 500}, Case{FinishReason::kOutOfMemory, "no memory", 503}}) {
    TestServer server;
    server.engine.set_answer({"Pa", "ris"}, one.finish);
    for (const auto& [path, body] :
         {std::pair{"/v1/chat/completions", std::string(kStream)}, {"/v1/responses", responses}}) {
      RawConnection connection(server.port);
      connection.send(post_text(path, body));
      const std::string text = connection.read_all();  // the server closes the connection
      EXPECT_NE(text.find("HTTP/1.1 200"), text.npos);
      EXPECT_NE(text.find(one.message), text.npos) << text;
      EXPECT_EQ(text.find("[DONE]"), text.npos) << path;
      EXPECT_EQ(text.find("\r\n0\r\n\r\n"), text.npos) << path << ": the chunks end as those of a whole answer";
      EXPECT_EQ(text.find("response.completed"), text.npos);
    }
    const auto counts = server.service.requests.counts();
    EXPECT_EQ(counts.at({"/v1/chat/completions", one.status}), 1);
    EXPECT_EQ(counts.at({"/v1/responses", one.status}), 1);
    EXPECT_FALSE(counts.contains({"/v1/chat/completions", 200}));
  }
}

TEST(HttpTest, AClientThatLeavesItsStreamCountsAs499) {
  TestServer server;
  server.engine.hold_after(1);
  {
    RawConnection connection(server.port);
    connection.send(post_text("/v1/chat/completions", kStream));
    connection.read_until("Pa");
  }
  ASSERT_TRUE(server.engine.wait_for_live_streams(0));
  server.server.wait_until_idle();
  EXPECT_EQ(server.service.requests.counts().at({"/v1/chat/completions", 499}), 1);
}

TEST(HttpTest, ASilentStreamGetsComments) {
  TestServer server;
  server.service.sse_ping = std::chrono::seconds(1);
  server.engine.hold_after(0);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/chat/completions", kStream));
  EXPECT_NE(connection.read_until(": ping\n\n").find(": ping\n\n"), std::string::npos);
  server.engine.release();
  EXPECT_NE(connection.read_until("[DONE]").find("Pa"), std::string::npos);
}

TEST(HttpTest, WithoutAnIntervalNoCommentIsSent) {
  TestServer server;
  server.service.sse_ping = std::chrono::seconds(0);
  server.engine.hold_after(0);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/chat/completions", kStream));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  server.engine.release();
  EXPECT_EQ(connection.read_until("[DONE]").find("ping"), std::string::npos);
}

// Each request logs one line, whatever its path contains.
TEST(HttpTest, TheAccessLogNamesKeyAndClient) {
  TestServer server({.api_key = "secret", .trusted_proxies = {"127.0.0.0/8"}});
  set_log_level(LogLevel::kInfo);
  flush_log(std::chrono::seconds(10));  // other tests may have moved the log to a thread
  ::testing::internal::CaptureStderr();
  const std::string head = " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
  for (const std::string& request :
       {"GET /v1/models" + head + "Authorization: Bearer secret\r\nX-Forwarded-For: 6.6.6.6, 1.2.3.4\r\n\r\n",
        "GET /a%0A2026-01-01T00:00:00.000Z%20error%20forged" + head + "\r\n", "GET /health" + head + "\r\n",
        std::string("nonsense\r\n\r\n")}) {
    RawConnection connection(server.port);
    connection.send(request);
    connection.read_all();
  }
  server.server.wait_until_idle();
  flush_log(std::chrono::seconds(10));
  const std::string log = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::kWarning);
  EXPECT_NE(log.find(" info request client=1.2.3.4 key=api_key method=GET path=/v1/models status=200 duration_ms="),
            log.npos)
      << log;
  EXPECT_NE(
      log.find("client=127.0.0.1 key=- method=GET path=\"/a\\n2026-01-01T00:00:00.000Z error forged\" status=404"),
      log.npos)
      << log;
  EXPECT_NE(log.find("method=- path=- status=400"), log.npos) << log;
  EXPECT_EQ(log.find("/health"), log.npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;
}

TEST(HttpTest, HeadHasTheHeadersOfGetAndNoBody) {
  TestServer server;
  RawConnection connection(server.port);
  connection.send("HEAD /version HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string answers = connection.read_all();
  const size_t end = answers.find("\r\n\r\n") + 4;
  const std::string head = answers.substr(0, end), rest = answers.substr(end);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << answers;
  EXPECT_NE(head.find("Keep-Alive: timeout=75, max=1000000\r\n"), head.npos) << head;
  EXPECT_TRUE(rest.starts_with("HTTP/1.1 200 OK\r\n")) << answers;
  EXPECT_NE(rest.find("Connection: close\r\n"), rest.npos) << rest;
  const std::string length = "Content-Length: " + std::to_string(rest.size() - rest.find("\r\n\r\n") - 4) + "\r\n";
  EXPECT_NE(head.find(length), head.npos) << answers;
  EXPECT_NE(rest.find(length), rest.npos) << answers;
}

TEST(HttpTest, AQueryMayContainQuestionMarks) {
  TestServer server;
  EXPECT_EQ(server.client().Get("/health?a?b?c=d")->status, 200);
  expect_error(server.client().Get("/v1/kv?layer=0&layer=1"), 400, "");
  EXPECT_EQ(server.client().Get("/v1/kv?%6cayer=%31")->status, 200);
}

// OpenSSL's writes raise SIGPIPE if the client has gone.
TEST(HttpTest, ABrokenPipeDoesNotEndTheServer) {
  std::signal(SIGPIPE, SIG_DFL);
  TestServer server;
  ::raise(SIGPIPE);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(HttpTest, ALargeBodyIsReadAsItWasSent) {
  TestServer server;
  const std::string text(1'000'000, 'a');
  const auto answer = server.post("/tokenize", Json{{"prompt", text}}.dump());
  ASSERT_TRUE(answer);
  EXPECT_EQ(Json::parse(answer->body)["count"], 1'000'000);
}

// A client that ends its side of the connection counts as one that has left, but may still read the answer.
TEST(HttpTest, AHalfClosedConnectionGetsAn499) {
  TestServer server;
  server.engine.hold_after(0);
  RawConnection connection(server.port);
  connection.send(post_text("/v1/chat/completions", kWhole));
  ASSERT_TRUE(server.engine.wait_for_live_streams(1));
  ::shutdown(connection.socket(), SHUT_WR);
  EXPECT_TRUE(connection.read_all().starts_with("HTTP/1.1 499"));
  EXPECT_EQ(server.service.requests.counts().at({"/v1/chat/completions", 499}), 1);
}

TEST(HttpTest, ExceptionsBecomeErrors) {
  http::RequestCounter counter;
  http::HttpServer server(
      {.port = 0, .http_threads = 2},
      {{.method = "GET", .path = "/throws", .handler = [](const auto&, auto&) { throw std::runtime_error("broken"); }},
       {.method = "GET", .path = "/int", .handler = [](const auto&, auto&) { throw 3; }},
       {.method = "GET",
        .path = "/late",
        .handler =
            [](const auto&, http::ResponseWriter& response) {
              response.begin_stream();
              response.write("begun");
              throw std::runtime_error("broken");
            }}},
      &counter);
  const int port = server.start();
  expect_error(httplib::Client("127.0.0.1", port).Get("/throws"), 500, "");
  expect_error(httplib::Client("127.0.0.1", port).Get("/int"), 500, "");
  RawConnection late(port);
  late.send("GET /late HTTP/1.1\r\n\r\n");
  const std::string text = late.read_all();
  EXPECT_TRUE(text.ends_with("\r\n\r\n5\r\nbegun\r\n")) << text;
  server.wait_until_idle();
  EXPECT_EQ(counter.counts().at({"/late", 500}), 1);
}

TEST(HttpTest, TheSamePortTwiceIsAnError) {
  TestServer server;
  http::RequestCounter counter;
  http::HttpServer second({.port = server.port, .http_threads = 1}, {}, &counter);
  EXPECT_THROW(second.start(), std::runtime_error);
}

}  // namespace
}  // namespace smartkv::test
