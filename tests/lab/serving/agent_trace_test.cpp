// Traces of agents: what a line may hold, and what an error says.
#include "lab/serving/agent_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv {
namespace {

using ::testing::HasSubstr;

std::string trace_error(const std::string& text) {
  try {
    parse_agent_trace(text);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

TEST(AgentTrace, ReadsEveryFieldAndWritesItAgain) {
  const std::string lines =
      R"({"session":"a","time_s":1.5,"messages":[{"role":"system","content":"S"},{"role":"user","content":"ü"}],"output_tokens":3})"
      "\n"
      R"({"session":"b","tokens":500,"output_tokens":48})"
      "\n"
      R"({"session":"a","think_s":0.25,"keep":1,"messages":[{"role":"user","content":"again"}],"output_tokens":4})"
      "\n";
  const std::vector<AgentTurn> turns = parse_agent_trace("\n" + lines + " \r\n");
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[0].messages, (std::vector<AgentMessage>{{"system", "S"}, {"user", "ü"}}));
  EXPECT_EQ(turns[0].time_s, 1.5);
  EXPECT_EQ(turns[1].tokens, 500);
  EXPECT_EQ(turns[1].output_tokens, 48);
  EXPECT_EQ(turns[2].think_s, 0.25);
  EXPECT_EQ(turns[2].keep, 1);
  std::string again;
  for (const AgentTurn& turn : turns) again += trace_line(turn) + "\n";
  EXPECT_EQ(again, lines);
}

TEST(AgentTrace, NamesLineAndFieldOfEveryMistake) {
  const std::string good = R"({"session":"a","tokens":1,"output_tokens":1})";
  EXPECT_EQ(trace_error(good), "");
  for (const auto& [line, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"nonsense", "expected a JSON object"},
           {"[]", "expected a JSON object, found an array"},
           {R"({"tokens":1,"output_tokens":1})", "session: expected a name, found none"},
           {R"({"session":"","tokens":1,"output_tokens":1})", "session: expected a name, found \"\""},
           {R"({"session":"a","token":1,"output_tokens":1})", "token: expected one of the fields session"},
           {R"({"session":"a","tokens":0,"output_tokens":1})",
            "tokens: expected an integer from 1 to 1073741824, found 0"},
           {R"({"session":"a","tokens":1.5,"output_tokens":1})",
            "tokens: expected an integer from 1 to 1073741824, found 1.5"},
           {R"({"session":"a","tokens":1})", "output_tokens: expected an integer from 1 to 1073741824, found none"},
           {R"({"session":"a","tokens":1,"output_tokens":"x"})", "output_tokens: expected an integer"},
           {R"({"session":"a","output_tokens":1})", "messages: expected either messages or tokens"},
           {R"({"session":"a","tokens":1,"messages":[],"output_tokens":1})", "messages: expected either"},
           {R"({"session":"b","messages":[],"output_tokens":1})", "messages: expected at least one"},
           {R"({"session":"a","messages":{},"output_tokens":1})", "messages: expected an array, found an object"},
           {R"({"session":"a","messages":[3],"output_tokens":1})", "messages[0]: expected an object, found 3"},
           {R"({"session":"a","messages":[{"role":"tool","content":""}],"output_tokens":1})",
            "messages[0].role: expected one of system, user, assistant, found \"tool\""},
           {R"({"session":"a","messages":[{"role":"user","content":[]}],"output_tokens":1})",
            "messages[0].content: expected a string, found an array"},
           {R"({"session":"a","messages":[{"role":"user","content":"","name":""}],"output_tokens":1})",
            "messages[0].name: expected one of the fields role, content"},
           {R"({"session":"a","time_s":-1,"tokens":1,"output_tokens":1})", "time_s: expected seconds from 0 to 1e9"},
           {R"({"session":"a","time_s":1,"think_s":1,"tokens":1,"output_tokens":1})", "think_s: expected none beside"},
           {R"({"session":"a","keep":4,"tokens":1,"output_tokens":1})",
            "keep: expected at most 3, the messages and replies of the session so far, found 4"},
       }) {
    const std::string error = trace_error(good + "\n" + line + "\n" + good);
    EXPECT_THAT(error, ::testing::StartsWith("line 2: ")) << line;
    EXPECT_THAT(error, HasSubstr(message)) << line;
  }
  EXPECT_EQ(trace_error("\n"), "expected at least one line");
}

TEST(AgentTrace, ShowsTheFirstMistakesAndCountsTheRest) {
  std::string text;
  for (int i = 0; i < 25; ++i) text += "{}\n";
  const std::string error = trace_error(text);
  EXPECT_THAT(error, HasSubstr("line 1: session"));
  EXPECT_THAT(error, HasSubstr("line 20: session"));
  EXPECT_THAT(error, ::testing::EndsWith("and 5 more lines"));
}

}  // namespace
}  // namespace smartkv
