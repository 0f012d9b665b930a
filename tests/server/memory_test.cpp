// GET /v1/kv and POST /v1/plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LiveRoute, TellsSequencesWithoutTheirText) {
  TestServer server;
  const Json plain = Json::parse(server.client().Get("/v1/kv")->body);
  EXPECT_EQ(plain["object"], "list");
  EXPECT_EQ(plain["bytes"], 25);
  EXPECT_EQ(plain["budget_bytes"], 100);
  EXPECT_EQ(plain["layer"], nullptr);
  ASSERT_EQ(plain["data"].size(), 1u);
  const Json live = plain["data"][0];
  EXPECT_EQ(live["id"], "chatcmpl-1");
  EXPECT_EQ(live["state"], "decoding");
  EXPECT_EQ(live["policy"], "streaming");
  EXPECT_EQ(live["bytes"], 600);
  EXPECT_EQ(live["tokens"], (Json{{"exact", 60.0}, {"evicted", 40.0}}));
  EXPECT_EQ(live["spans"], Json::array());
  const Json spans = Json::parse(server.client().Get("/v1/kv?layer=1")->body)["data"][0]["spans"];
  EXPECT_EQ(spans, Json::array({{{"first", 0}, {"end", 40}, {"tiers", {{"evicted", 1.0}}}},
                                {{"first", 40}, {"end", 100}, {"tiers", {{"exact", 1.0}}}}}));
}

TEST(LiveRoute, NeedsTheKey) {
  TestServer server({.api_key = "secret"});
  EXPECT_EQ(server.client().Get("/v1/kv")->status, 401);
  EXPECT_EQ(server.client().Get("/v1/kv", {{"Authorization", "Bearer secret"}})->status, 200);
}

TEST(LiveRoute, RefusesOtherQuestions) {
  TestServer server;
  const auto error = [&](const char* path) {
    const auto answer = server.client().Get(path);
    EXPECT_EQ(answer->status, 400) << path;
    return Json::parse(answer->body)["error"];
  };
  EXPECT_EQ(error("/v1/kv?layer=3")["param"], "layer");
  EXPECT_EQ(error("/v1/kv?layer=-1")["param"], "layer");
  EXPECT_EQ(error("/v1/kv?layer=first")["param"], "layer");
  EXPECT_EQ(error("/v1/kv?head=0")["param"], "head");
}

TEST(PrefixesRoute, ListsStatesWithoutTheirText) {
  TestServer server;
  const Json all = Json::parse(server.client().Get("/v1/kv/prefixes")->body);
  EXPECT_EQ(all["object"], "list");
  ASSERT_EQ(all["data"].size(), 2u);
  EXPECT_EQ(all["data"][0], (Json{{"kv_cache", {{"policy", "full"}}},
                                  {"where", {"memory", "file"}},
                                  {"tokens", 120},
                                  {"bytes", 4096},
                                  {"freed_bytes", 1024},
                                  {"idle_requests", 3},
                                  {"value", 0.5}}));
  EXPECT_EQ(all["data"][1]["where"], Json::array({"file"}));
  EXPECT_EQ(Json::parse(server.client().Get("/v1/kv/prefixes?limit=1")->body)["data"].size(), 1u);
  for (const char* path : {"/v1/kv/prefixes?limit=0", "/v1/kv/prefixes?limit=1001", "/v1/kv/prefixes?text=1"}) {
    EXPECT_EQ(server.client().Get(path)->status, 400) << path;
  }
}

TEST(PrefixesRoute, NeedsTheKey) {
  TestServer server({.api_key = "secret"});
  EXPECT_EQ(server.client().Get("/v1/kv/prefixes")->status, 401);
  EXPECT_EQ(server.client().Get("/v1/kv/prefixes", {{"Authorization", "Bearer secret"}})->status, 200);
}

TEST(PlanRoute, TakesTheBodiesOfBothEndpoints) {
  TestServer server;
  const Json chat = Json::parse(
      server.post("/v1/plan", R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "n": 2})")->body);
  EXPECT_EQ(chat["object"], "plan");
  EXPECT_EQ(chat["kv_cache_bytes"], 100);
  ASSERT_EQ(chat["data"].size(), 1u);
  EXPECT_EQ(chat["data"][0]["max_tokens"], 7);
  EXPECT_EQ(chat["data"][0]["n"], 2);
  const int64_t prompt = chat["data"][0]["prompt_tokens"];
  EXPECT_EQ(prompt, static_cast<int64_t>(std::string("user:Hi\nassistant:").size()));
  const Json plans = chat["data"][0]["plans"];
  EXPECT_EQ(plans[0]["fits"], true);
  EXPECT_EQ(plans[0]["reason"], nullptr);
  EXPECT_EQ(plans[0]["max_bytes"], prompt + 7);
  EXPECT_EQ(plans[1]["fits"], false);
  EXPECT_EQ(plans[1]["policy"], nullptr);
  EXPECT_EQ(plans[1]["reason"], "not for this model");
  const Json completions = Json::parse(server.post("/v1/plan", R"({"prompt": ["a", "bcd"], "max_tokens": 1})")->body);
  ASSERT_EQ(completions["data"].size(), 2u);
  EXPECT_EQ(completions["data"][1]["prompt_tokens"], 3);
  EXPECT_TRUE(server.engine.submitted().empty());
}

TEST(PlanRoute, RefusesWhatTheEndpointsRefuse) {
  TestServer server;
  const auto error = [&](const char* body) {
    const auto answer = server.post("/v1/plan", body);
    EXPECT_EQ(answer->status, 400) << body;
    return Json::parse(answer->body)["error"];
  };
  EXPECT_EQ(error(R"({"prompt": "a", "messages": []})")["param"], "messages");
  EXPECT_EQ(error(R"({"prompt": "a", "bites": 1})")["param"], "bites");
  EXPECT_EQ(error(R"({})")["param"], "prompt");
  EXPECT_THAT(error("[]")["message"], HasSubstr("an object"));
}

}  // namespace
}  // namespace smartkv::test
