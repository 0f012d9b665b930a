// Driving a server with requests of agents. The engine follows a script.
#include "lab/serving/agent_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AgentTurn turn_of(const std::string& session, const std::string& text) {
  AgentTurn turn;
  turn.session = session;
  turn.messages = {{"user", text}};
  turn.output_tokens = 3;
  return turn;
}

class AgentRun : public ::testing::Test {
 protected:
  AgentRun() { server_.engine.set_answer({"ab", "c"}, FinishReason::kLength); }

  std::vector<AgentTurnResult> run(const std::vector<AgentTurn>& turns, const AgentRunOptions& options) {
    const LoadClient client("http://127.0.0.1:" + std::to_string(server_.port), {});
    return run_agents(client, turns, options, &conversations_);
  }
  static std::vector<std::string> sessions(const std::vector<AgentTurnResult>& results) {
    std::vector<std::string> names;
    for (const AgentTurnResult& result : results) names.push_back(result.turn->session);
    return names;
  }
  std::string prompt(size_t request) const {
    const std::vector<TokenId> tokens = server_.engine.submitted().at(request).prompt;
    return server_.engine.tokenizer_.decode(tokens);
  }

  TestServer server_;
  AgentConversations conversations_;
};

TEST_F(AgentRun, TheNextPromptContainsTheServersReply) {
  const std::vector<AgentTurn> turns = {turn_of("x", "first"), turn_of("x", "second")};
  const auto results = run(turns, {.at_once = 2});
  ASSERT_EQ(results.size(), 2u);
  for (const AgentTurnResult& result : results) EXPECT_EQ(result.outcome.failure, "");
  EXPECT_THAT(conversations_["x"], ElementsAre(AgentMessage{"user", "first"}, AgentMessage{"assistant", "abc"},
                                               AgentMessage{"user", "second"}, AgentMessage{"assistant", "abc"}));
  EXPECT_THAT(prompt(1), HasSubstr("abc"));
  const GenerationRequest seen = server_.engine.submitted().at(1);
  EXPECT_EQ(seen.min_tokens, 3);
  EXPECT_EQ(seen.max_tokens, 3);
  EXPECT_EQ(seen.sampling.temperature, 0);
  EXPECT_FALSE(seen.ignore_eos);
}

TEST_F(AgentRun, SessionsGoRoundRobin) {
  std::vector<AgentTurn> turns;
  for (int i = 0; i < 3; ++i) {
    for (const char* session : {"a", "b", "c"}) turns.push_back(turn_of(session, "text"));
  }
  EXPECT_THAT(sessions(run(turns, {.at_once = 1})), ElementsAre("a", "b", "c", "a", "b", "c", "a", "b", "c"));
}

TEST_F(AgentRun, OnlySoManyRequestsAreUnderWay) {
  server_.engine.hold_after(1);
  const std::vector<AgentTurn> turns = {turn_of("a", "x"), turn_of("b", "x"), turn_of("c", "x")};
  auto results = std::async(std::launch::async, [&] { return run(turns, {.at_once = 2}); });
  EXPECT_TRUE(server_.engine.wait_for_live_streams(2));
  EXPECT_EQ(server_.engine.submitted().size(), 2u);
  server_.engine.release();
  EXPECT_EQ(results.get().size(), 3u);
}

TEST_F(AgentRun, WaitsForTimesUnlessTheyAreIgnored) {
  std::vector<AgentTurn> turns = {turn_of("late", "x"), turn_of("soon", "x"), turn_of("soon", "y")};
  turns[0].time_s = 0.3;
  turns[2].think_s = 0.05;
  const auto results = run(turns, {.at_once = 4});
  EXPECT_THAT(sessions(results), ElementsAre("soon", "soon", "late"));
  EXPECT_GE(results[1].sent_s, results[0].ended_s + 0.05);
  EXPECT_GE(results[2].sent_s, 0.3);
  conversations_.clear();
  EXPECT_THAT(sessions(run(turns, {.at_once = 1, .ignore_times = true})), ElementsAre("late", "soon", "soon"));
}

TEST_F(AgentRun, KeepDropsTheEndOfTheConversation) {
  std::vector<AgentTurn> turns = {turn_of("x", "first"), turn_of("x", "other")};
  turns[1].keep = 0;
  run(turns, {});
  EXPECT_THAT(conversations_["x"], ElementsAre(AgentMessage{"user", "other"}, AgentMessage{"assistant", "abc"}));
}

TEST_F(AgentRun, AFailureEndsItsSession) {
  std::vector<AgentTurn> turns = {turn_of("bad", "x"), turn_of("good", "x"), turn_of("bad", "y"), turn_of("good", "y")};
  turns[0].output_tokens = 5000;
  const AgentSummary summary = summarize_agents(run(turns, {.at_once = 1}));
  EXPECT_EQ(summary.turns, 4);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_THAT(summary.failure, HasSubstr("400"));
  EXPECT_EQ(server_.engine.submitted().size(), 2u);
}

TEST(AgentSummary, CountsTurnsOfAMinute) {
  const AgentTurn turn;
  std::vector<AgentTurnResult> results;
  for (int i = 1; i <= 4; ++i) {
    AgentTurnResult result{.turn = &turn, .sent_s = 0, .ended_s = 3.0 * i, .outcome = {}};
    result.outcome.first_token_s = i;
    result.outcome.prompt_tokens = 100;
    result.outcome.cached_tokens = 75;
    results.push_back(result);
  }
  AgentTurnResult failed{.turn = &turn, .sent_s = 0, .ended_s = 100, .outcome = {}};
  failed.outcome.failure = "500: broken";
  failed.outcome.prompt_tokens = 1000;
  results.push_back(failed);
  const AgentSummary summary = summarize_agents(results);
  EXPECT_EQ(summary.turns, 5);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.failure, "500: broken");
  EXPECT_EQ(summary.wall_s, 12);
  EXPECT_EQ(summary.turns_per_min, 20);
  EXPECT_EQ(summary.first_token_p50_s, 2.5);
  EXPECT_DOUBLE_EQ(summary.first_token_p95_s, 3.85);
  EXPECT_EQ(summary.found(), 0.75);
  EXPECT_EQ(summarize_agents({}).turns_per_min, 0);
  EXPECT_EQ(summarize_agents({}).found(), 0);
}

}  // namespace
}  // namespace smartkv::test
