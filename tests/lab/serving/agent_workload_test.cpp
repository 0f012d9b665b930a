// The synthetic workload of agents, with a tokenizer whose tokens are bytes.
#include "lab/serving/agent_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "engine/text/utf8.h"
#include "tests/server/fake_engine.h"

namespace smartkv {
namespace {

constexpr AgentWorkload kSmall = {
    .sessions = 3, .turns = 2, .start_tokens = 3000, .turn_tokens = 400, .reply_tokens = 5};

std::vector<AgentTurn> written(const AgentWorkload& workload, int64_t shared_tokens) {
  std::vector<AgentTurn> turns = synthetic_turns(workload);
  write_texts(test::ByteTokenizer(), shared_tokens, &turns);
  return turns;
}

size_t common_prefix(const std::string& a, const std::string& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

TEST(AgentWorkload, SessionsTakeTurns) {
  const std::vector<AgentTurn> turns = synthetic_turns(kSmall);
  std::vector<std::string> order;
  for (const AgentTurn& turn : turns) order.push_back(turn.session);
  EXPECT_THAT(order, ::testing::ElementsAre("1", "2", "3", "1", "2", "3"));
  EXPECT_EQ(turns[2].tokens, 3000);
  EXPECT_EQ(turns[3].tokens, 400);
  EXPECT_EQ(turns[3].output_tokens, 5);
}

TEST(AgentWorkload, TextsHaveTheLengthsThatWereAskedFor) {
  const std::vector<AgentTurn> turns = written(kSmall, 500);
  ASSERT_EQ(turns[0].messages.size(), 2u);
  EXPECT_EQ(turns[0].messages[0].role, "system");
  EXPECT_EQ(turns[0].messages[0].content.size(), 500u);
  EXPECT_NEAR(static_cast<double>(turns[0].messages[1].content.size()), 2500, 3);  // it may end inside a character
  ASSERT_EQ(turns[3].messages.size(), 1u);
  EXPECT_NEAR(static_cast<double>(turns[3].messages[0].content.size()), 400, 3);
  for (const AgentTurn& turn : turns) {
    EXPECT_EQ(turn.tokens, 0);
    for (const AgentMessage& message : turn.messages) EXPECT_TRUE(utf8_is_valid(message.content));
  }
  const int64_t longest = longest_conversation(test::ByteTokenizer(), turns);
  EXPECT_GE(longest, 3000 + 5 + 400 + 5 - 6);
  EXPECT_LE(longest, 3000 + 5 + 400 + 5 + 100);
}

TEST(AgentWorkload, SessionsDifferBehindTheSystemMessage) {
  const std::vector<AgentTurn> turns = written(kSmall, 500);
  EXPECT_EQ(turns[0].messages[0], turns[1].messages[0]);
  for (const auto& [a, b] : {std::pair(0, 1), {0, 2}, {1, 2}}) {
    EXPECT_LT(common_prefix(turns[static_cast<size_t>(a)].messages[1].content,
                            turns[static_cast<size_t>(b)].messages[1].content),
              32u);
  }
  EXPECT_NE(turns[3].messages[0], turns[4].messages[0]);
  EXPECT_EQ(written(kSmall, 500), turns);
}

TEST(AgentWorkload, ATextMayBeLongerThanAllPassages) {
  AgentWorkload workload = kSmall;
  workload.sessions = 1;
  workload.start_tokens = 400000;
  EXPECT_NEAR(static_cast<double>(written(workload, 500)[0].messages[1].content.size()), 399500, 3);
}

TEST(AgentWorkload, MessagesOfATraceStay) {
  AgentTurn own;
  own.session = "x";
  own.messages = {{"user", "mine"}};
  own.output_tokens = 1;
  AgentTurn more = own, anew = own;
  more.messages = {};
  more.tokens = 50;
  anew = more;
  anew.keep = 0;
  anew.tokens = 600;
  std::vector<AgentTurn> turns = {own, more, anew};
  write_texts(test::ByteTokenizer(), 500, &turns);
  EXPECT_EQ(turns[0], own);
  EXPECT_EQ(turns[1].messages.size(), 1u);
  EXPECT_EQ(turns[2].messages.size(), 2u);  // the conversation begins anew, with a system message
}

TEST(AgentWorkload, AFirstTurnMustBeLongerThanTheSystemMessage) {
  EXPECT_THROW(written(kSmall, 2990), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv
