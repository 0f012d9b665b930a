// Responses that are stored, continued, listed, cancelled and deleted over HTTP.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;
using test::Json;
using test::TestServer;

// A server that stores responses in memory.
class StoringServer : public TestServer {
 public:
  explicit StoringServer(int64_t bytes = 1 << 20, http::HttpOptions options = {}, const fs::path& folder = {},
                         int64_t conversation_bytes = 1 << 20)
      : TestServer(std::move(options),
                   std::make_unique<http::ResponseStore>(
                       folder.empty() ? openai::texts_in_memory(bytes) : openai::texts_in_folder(bytes, folder),
                       conversation_bytes, bytes)) {}

  Json ask(const std::string& body) const { return Json::parse(post("/v1/responses", body)->body); }
  std::string answered(const std::string& body) const {
    const Json response = ask(body);
    return response.contains("id") ? response["id"].get<std::string>() : response.dump();
  }
  std::string last_prompt() const { return engine.tokenizer().decode(engine.submitted().back().prompt, false); }
  Json get(const std::string& path) const { return Json::parse(client().Get("/v1/responses/" + path)->body); }
  int status(const std::string& path) const { return client().Get("/v1/responses/" + path)->status; }
  // Waits until a response no longer runs.
  Json ended(const std::string& id) const {
    service.responses->wait_until_idle();
    return get(id);
  }
};

std::string continuing(const std::string& id, const std::string& input) {
  return R"({"previous_response_id": ")" + id + R"(", "input": ")" + input + "\"}";
}

TEST(StoredResponsesTest, ARequestContinuesAStoredResponse) {
  const StoringServer server;
  const std::string first = server.answered(R"({"input": "a", "instructions": "be"})");
  const Json second = server.ask(continuing(first, "b"));
  EXPECT_EQ(second["previous_response_id"], first);
  EXPECT_EQ(second["store"], true);
  // Instructions are those of one request only, as in OpenAI's API.
  EXPECT_EQ(server.last_prompt(), "user:a\nassistant:Paris.\nuser:b\nassistant:");
  server.answered(continuing(second["id"], "c"));
  EXPECT_EQ(server.last_prompt(), "user:a\nassistant:Paris.\nuser:b\nassistant:Paris.\nuser:c\nassistant:");
  server.answered(continuing(first, "d"));  // a branch
  EXPECT_EQ(server.last_prompt(), "user:a\nassistant:Paris.\nuser:d\nassistant:");
}

TEST(StoredResponsesTest, GetReturnsWhatPostReturned) {
  const StoringServer server;
  const Json response = server.ask(R"({"input": "a", "metadata": {"k": "v"}})");
  EXPECT_EQ(server.get(response["id"]), response);
  EXPECT_EQ(
      server.get(response["id"].get<std::string>() + "?stream=false&include[]=reasoning.encrypted_content&include[]=x"),
      response);
  EXPECT_EQ(server.status(response["id"].get<std::string>() + "?stream=true"), 400);
  EXPECT_EQ(server.status(response["id"].get<std::string>() + "/other"), 404);
  EXPECT_EQ(server.post("/v1/responses/" + response["id"].get<std::string>(), "{}")->status, 405);
}

TEST(StoredResponsesTest, AStreamIsStoredBeforeItsLastEvent) {
  const StoringServer server;
  const auto streamed = server.stream("/v1/responses", R"({"input": "a", "stream": true})");
  ASSERT_TRUE(streamed.whole);
  const size_t last = streamed.body.rfind("data: ");
  const Json event = Json::parse(streamed.body.substr(last + 6));
  EXPECT_EQ(event["type"], "response.completed");
  EXPECT_EQ(server.get(event["response"]["id"]), event["response"]);
}

TEST(StoredResponsesTest, DeleteEndsTheConversationsThatNeedIt) {
  const StoringServer server;
  const std::string first = server.answered(R"({"input": "a"})"), second = server.answered(continuing(first, "b"));
  const auto deleted = server.client().Delete("/v1/responses/" + first);
  EXPECT_EQ(deleted->status, 200);
  EXPECT_EQ(Json::parse(deleted->body), Json({{"id", first}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(server.client().Delete("/v1/responses/" + first)->status, 404);
  EXPECT_EQ(server.status(first), 404);
  EXPECT_EQ(server.status(second), 200);
  const Json error = server.ask(continuing(second, "c"))["error"];
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_EQ(error["code"], "previous_response_not_found");
  EXPECT_NE(error["message"].get<std::string>().find(first), std::string::npos);
  const auto items = server.client().Get("/v1/responses/" + second + "/input_items");
  EXPECT_EQ(items->status, 400);
  EXPECT_EQ(Json::parse(items->body)["error"]["param"], "response_id");
}

TEST(StoredResponsesTest, ListsTheTurnsBeforeAResponse) {
  const StoringServer server;
  const std::string first = server.answered(R"({"input": "a"})"),
                    second = server.answered(R"({"previous_response_id": ")" + first +
                                             R"(", "input": [{"role": "user", "content": "b"}]})");
  const Json all = server.get(second + "/input_items?order=asc");
  ASSERT_EQ(all["data"].size(), 3);
  EXPECT_EQ(all["data"][0]["content"][0]["text"], "a");
  EXPECT_EQ(all["data"][1]["content"][0]["text"], "Paris.");
  EXPECT_EQ(all["data"][2]["content"], "b");
  EXPECT_EQ(all["data"][2]["type"], "message");
  EXPECT_EQ(all["has_more"], false);
  const Json page = server.get(second + "/input_items?limit=1");
  EXPECT_EQ(page["data"][0], all["data"][2]);
  EXPECT_EQ(page["has_more"], true);
  const Json next = server.get(second + "/input_items?limit=5&after=" + page["last_id"].get<std::string>());
  EXPECT_EQ(next["data"][0], all["data"][1]);
  EXPECT_EQ(next["has_more"], false);
  for (const char* wrong : {"?limit=0", "?limit=x", "?order=up", "?after=nothing", "?other=1", "?limit=1&limit=2"})
    EXPECT_EQ(server.status(second + "/input_items" + wrong), 400) << wrong;
}

TEST(StoredResponsesTest, NothingIsStoredUnlessBothSidesWantIt) {
  const StoringServer storing;
  const Json unstored = storing.ask(R"({"input": "a", "store": false})");
  EXPECT_EQ(unstored["store"], false);
  EXPECT_EQ(storing.status(unstored["id"]), 404);

  const TestServer server;
  const Json response = Json::parse(server.post("/v1/responses", R"({"input": "a", "store": true})")->body);
  EXPECT_EQ(response["store"], false);
  const std::string path = "/v1/responses/" + response["id"].get<std::string>();
  EXPECT_EQ(server.client().Get(path)->status, 404);
  EXPECT_EQ(server.client().Delete(path)->status, 404);
  EXPECT_EQ(server.post(path + "/cancel", "")->status, 404);
  for (const char* body : {R"({"input": "a", "background": true})", R"({"input": "a", "previous_response_id": "r"})"})
    EXPECT_EQ(server.post("/v1/responses", body)->status, 400) << body;
}

TEST(StoredResponsesTest, OldResponsesMakeRoomForNewOnes) {
  const StoringServer server(6000);
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(server.answered(R"({"input": "a"})"));
  EXPECT_EQ(server.status(ids.front()), 404);
  EXPECT_EQ(server.status(ids.back()), 200);
  const StoringServer small(100);  // one that has no room says so
  const Json response = small.ask(R"({"input": "a"})");
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(small.status(response["id"]), 404);
}

TEST(StoredResponsesTest, AConversationThatOutgrowsABodyEnds) {
  const StoringServer server(1 << 20, {}, {}, 2000);
  std::string id = server.answered(R"({"input": "a"})");
  Json next;
  for (int i = 0; i < 6 && next["error"].is_null(); ++i) {
    next = server.ask(continuing(id, "b"));
    if (next.contains("id")) id = next["id"];
  }
  EXPECT_EQ(next["error"]["param"], "previous_response_id");
  EXPECT_EQ(next["error"]["code"], "request_too_large");
}

TEST(StoredResponsesTest, IdsThatTheServerNeverMadeAreNotFound) {
  const StoringServer server;
  for (const char* id : {"r", "resp_", "resp_..%2f..%2f..%2fetc%2fpasswd00", "resp_ABCDEFGHIJKLMNOPQRSTUVWX"}) {
    EXPECT_EQ(server.status(id), 404) << id;
  }
  for (const char* id : {"../../../etc/passwd", ""})
    EXPECT_EQ(server.ask(continuing(id, "a"))["error"]["param"], "previous_response_id");
}

TEST(StoredResponsesTest, AFolderKeepsResponsesAcrossRestarts) {
  const fs::path folder = fs::temp_directory_path() / ("stored_responses_test_" + std::to_string(::getpid()));
  fs::remove_all(folder);
  std::string id;
  Json response;
  {
    const StoringServer server(1 << 20, {}, folder);
    response = server.ask(R"({"input": "a"})");
    id = response["id"];
  }
  {
    const StoringServer server(1 << 20, {}, folder);
    EXPECT_EQ(server.get(id), response);
    server.answered(continuing(id, "b"));
    EXPECT_EQ(server.last_prompt(), "user:a\nassistant:Paris.\nuser:b\nassistant:");
    const std::string head = R"({"owner": "", "response": {"id": ")" + id + "\", ";
    for (const std::string& damaged :
         {std::string(), std::string("{"), std::string("[]"), std::string(R"({"owner": 1})"),
          head + R"("output": []}, "input": "a"})", head + R"("output": []}, "input": [1, null]})",
          head + R"("output": 1}, "input": []})", std::string(100'000, '[')}) {
      std::ofstream(folder / (id + ".response")) << damaged;
      EXPECT_EQ(server.status(id), 404) << damaged;
    }
    fs::resize_file(folder / (id + ".response"), uintmax_t{1} << 40);  // sparse; longer than any that the server wrote
    EXPECT_EQ(server.status(id), 404);
  }
  fs::remove_all(folder);
}

TEST(StoredResponsesTest, AFolderThatIsGoneEndsNoAnswer) {
  const fs::path folder = fs::temp_directory_path() / ("stored_responses_gone_" + std::to_string(::getpid()));
  StoringServer server(1 << 20, {}, folder);
  fs::remove_all(folder);
  const Json response = server.ask(R"({"input": "a"})");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["store"], false);
  const std::string id = server.answered(R"({"input": "a", "background": true})");
  server.service.responses->wait_until_idle();
  EXPECT_EQ(server.status(id), 404);
}

TEST(StoredResponsesTest, OthersKeysFindNothing) {
  const fs::path file = fs::temp_directory_path() / ("stored_responses_keys_" + std::to_string(::getpid()));
  std::ofstream(file) << R"({"one": {"key": "0123456789abcdef-one", "concurrent_requests": 1},
                             "two": {"key": "0123456789abcdef-two"}})";
  StoringServer server(1 << 20, {.api_keys_file = file});
  const auto as = [&](const char* name) {
    auto client = server.client();
    client.set_bearer_token_auth(std::string("0123456789abcdef-") + name);
    return client;
  };
  const auto post = [&](const char* name, const std::string& body) {
    return Json::parse(as(name).Post("/v1/responses", body, "application/json")->body);
  };
  const std::string id = post("one", R"({"input": "a"})")["id"], path = "/v1/responses/" + id;
  EXPECT_EQ(as("one").Get(path)->status, 200);
  EXPECT_EQ(as("two").Get(path)->status, 404);
  EXPECT_EQ(as("two").Delete(path)->status, 404);
  EXPECT_EQ(post("two", continuing(id, "b"))["error"]["code"], "previous_response_not_found");
  EXPECT_EQ(server.client().Get(path)->status, 401);
  // A response in the background counts as a running request of its key, which may still cancel it.
  server.service.responses->wait_until_idle();
  server.engine.hold_after(1);
  const std::string running = post("one", R"({"input": "a", "background": true})")["id"];
  EXPECT_EQ(post("one", R"({"input": "b"})")["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(as("two").Post("/v1/responses/" + running + "/cancel")->status, 404);
  EXPECT_EQ(Json::parse(as("one").Post("/v1/responses/" + running + "/cancel")->body)["status"], "cancelled");
  server.engine.release();
  EXPECT_EQ(post("one", R"({"input": "b"})")["status"], "completed");
  fs::remove(file);
}

TEST(BackgroundResponsesTest, RunWithoutTheirClient) {
  StoringServer server;
  server.engine.hold_after(1);
  const Json begun = server.ask(R"({"input": "a", "background": true})");
  EXPECT_EQ(begun["status"], "in_progress");
  EXPECT_EQ(begun["background"], true);
  EXPECT_EQ(server.get(begun["id"])["status"], "in_progress");
  server.engine.release();
  const Json response = server.ended(begun["id"]);
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Paris.");
  EXPECT_EQ(response["usage"]["output_tokens"], 6);
}

TEST(BackgroundResponsesTest, ShowTheirInputWhileTheyRun) {
  StoringServer server;
  const std::string first = server.answered(R"({"input": "a"})");
  server.engine.hold_after(1);
  const std::string id =
      server.answered(R"({"input": "b", "background": true, "previous_response_id": ")" + first + "\"}");
  EXPECT_EQ(server.get(id)["status"], "in_progress");
  const Json running = server.get(id + "/input_items");
  ASSERT_EQ(running["data"].size(), 3);
  EXPECT_EQ(running["data"][0]["content"][0]["text"], "b");
  server.engine.release();
  server.ended(id);
  EXPECT_EQ(server.get(id + "/input_items"), running);
}

TEST(BackgroundResponsesTest, SeveralRunAtOnce) {
  StoringServer server;
  server.engine.hold_after(1);
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(server.answered(R"({"input": "a", "background": true})"));
  server.engine.release();
  for (const std::string& id : ids) EXPECT_EQ(server.ended(id)["status"], "completed");
}

TEST(BackgroundResponsesTest, CancelEndsThem) {
  StoringServer server;
  server.engine.hold_after(1);
  const std::string id = server.answered(R"({"input": "a", "background": true})");
  while (server.get(id)["output"].empty()) std::this_thread::yield();
  const Json cancelled = Json::parse(server.post("/v1/responses/" + id + "/cancel", "")->body);
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_EQ(cancelled["output"][0]["status"], "incomplete");
  EXPECT_EQ(cancelled["output"][0]["content"][0]["text"], "Pa");
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
  EXPECT_EQ(Json::parse(server.post("/v1/responses/" + id + "/cancel", "")->body), cancelled);  // twice is once
  server.engine.release();
  const std::string whole = server.answered(R"({"input": "a"})");
  EXPECT_EQ(server.post("/v1/responses/" + whole + "/cancel", "")->status, 400);
}

TEST(BackgroundResponsesTest, DeleteCancelsThem) {
  StoringServer server;
  server.engine.hold_after(1);
  const std::string id = server.answered(R"({"input": "a", "background": true})");
  EXPECT_EQ(server.client().Delete("/v1/responses/" + id)->status, 200);
  EXPECT_EQ(server.status(id), 404);
  EXPECT_TRUE(server.engine.wait_for_live_streams(0));
}

TEST(BackgroundResponsesTest, FailuresAreStored) {
  StoringServer server;
  server.engine.set_answer({"Pa"}, FinishReason::kOutOfMemory);
  const Json failed = server.ended(server.answered(R"({"input": "a", "background": true})"));
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"]["code"], "out_of_memory");
}

TEST(BackgroundResponsesTest, AreRefusedWhereNobodyCouldReadThem) {
  const StoringServer server;
  const auto param = [&](const char* body) { return server.ask(body)["error"]["param"]; };
  EXPECT_EQ(param(R"({"input": "a", "background": true, "store": false})"), "background");
  EXPECT_EQ(param(R"({"input": "a", "background": true, "stream": true})"), "stream");
}

TEST(BackgroundResponsesTest, HoldNoMoreThanTheStoreHasRoomFor) {
  StoringServer server(4000);
  server.engine.hold_after(1);
  Json last;
  int taken = 0;
  for (; taken < 20 && !last.contains("error"); ++taken) {
    last = server.ask(R"({"input": "a", "background": true})");
    if (last["error"].is_null()) last.erase("error");
  }
  EXPECT_GT(taken, 1);
  EXPECT_EQ(last["error"]["param"], "background");
  EXPECT_EQ(last["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(static_cast<int>(server.engine.submitted().size()), taken - 1);  // the refused one was never queued
  server.engine.release();
  server.service.responses->wait_until_idle();
  EXPECT_TRUE(server.ask(R"({"input": "a", "background": true})")["error"].is_null());
}

TEST(BackgroundResponsesTest, OneThatNeverFitsIsRefusedForGood) {
  const StoringServer server(600);
  const std::string body = R"({"input": ")" + std::string(700, 'a') + R"(", "background": true})";
  const auto refused = server.post("/v1/responses", body);
  EXPECT_EQ(refused->status, 413);
  EXPECT_FALSE(refused->has_header("Retry-After"));
  EXPECT_EQ(Json::parse(refused->body)["error"]["param"], "background");
}

TEST(BackgroundResponsesTest, OneWithoutRoomIsStillCancelled) {
  StoringServer server(600);
  server.engine.hold_after(1);
  std::string body = R"({"input": "a", "background": true})";
  const std::string id = server.answered(body);
  ASSERT_TRUE(id.starts_with("resp_")) << id;
  EXPECT_EQ(Json::parse(server.post("/v1/responses/" + id + "/cancel", "")->body)["status"], "cancelled");
  EXPECT_EQ(server.status(id), 404);
}

TEST(BackgroundResponsesTest, AServerThatEndsCancelsThem) {
  test::FakeEngine engine;
  engine.hold_after(1);
  {
    const test::ServedEngine server(
        engine, {"fake"}, {},
        std::make_unique<http::ResponseStore>(openai::texts_in_memory(1 << 20), 1 << 20, 1 << 20));
    EXPECT_EQ(server.post("/v1/responses", R"({"input": "a", "background": true})")->status, 200);
  }
  EXPECT_TRUE(engine.wait_for_live_streams(0));
}

}  // namespace
}  // namespace smartkv
