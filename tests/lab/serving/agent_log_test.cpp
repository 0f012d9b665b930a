// Logs of requests become traces.
#include "lab/serving/agent_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Replaces ' by ", for JSON.
std::string log_text(std::string text) {
  std::ranges::replace(text, '\'', '"');
  return text + "\n";
}

std::string converting_error(const std::string& line) {
  try {
    convert_agent_log(log_text(line));
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

// Returns a line of a log with these messages, and a reply of so many tokens.
std::string openai_line(const std::string& messages, int tokens, const std::string& more = "") {
  return log_text("{'request': {'model': 'm', 'messages': [" + messages +
                  "]}, 'response': {'usage': {'completion_tokens': " + std::to_string(tokens) + "}}" + more + "}");
}

const std::string kLoggedSystem = "{'role': 'system', 'content': 'S'}, ";

TEST(AgentLog, ARequestThatGoesOnAddsItsNewMessages) {
  const std::vector<AgentTurn> turns = convert_agent_log(
      openai_line(kLoggedSystem + "{'role': 'user', 'content': 'A'}", 7) +
      openai_line(kLoggedSystem + "{'role': 'user', 'content': 'other task'}", 8) +
      openai_line(kLoggedSystem + "{'role': 'user', 'content': 'A'}, {'role': 'assistant', 'content': "
                                  "'whatever'}, {'role': 'tool', 'content': 'B'}",
                  9));
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[0].session, "1");
  EXPECT_THAT(turns[0].messages, ElementsAre(AgentMessage{"system", "S"}, AgentMessage{"user", "A"}));
  EXPECT_EQ(turns[0].output_tokens, 7);
  EXPECT_EQ(turns[1].session, "2");  // the system message alone makes no session
  EXPECT_EQ(turns[2].session, "1");
  EXPECT_EQ(turns[2].keep, std::nullopt);
  EXPECT_THAT(turns[2].messages, ElementsAre(AgentMessage{"user", "B"}));
  EXPECT_EQ(turns[2].time_s, std::nullopt);
}

TEST(AgentLog, AnEditedConversationKeepsItsBeginning) {
  const std::string beginning =
      kLoggedSystem + "{'role': 'user', 'content': 'A'}, {'role': 'assistant', 'content': 'r'}, ";
  const std::vector<AgentTurn> turns =
      convert_agent_log(openai_line(beginning + "{'role': 'user', 'content': 'B'}", 1) +
                        openai_line(beginning + "{'role': 'user', 'content': 'C'}", 1) +
                        openai_line(beginning + "{'role': 'user', 'content': 'C'}", 1));
  EXPECT_EQ(turns[1].keep, 3);
  EXPECT_THAT(turns[1].messages, ElementsAre(AgentMessage{"user", "C"}));
  EXPECT_EQ(turns[2].keep, 4);  // asked again, without the reply
  EXPECT_THAT(turns[2].messages, ElementsAre());
}

TEST(AgentLog, ReadsOpenAisToolCalls) {
  const auto turns = convert_agent_log(openai_line(
      "{'role': 'user', 'content': [{'type': 'text', 'text': 'look'}, {'type': 'image_url', 'image_url': {}}]}, "
      "{'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f', 'arguments': '{}'}}]}, "
      "{'role': 'tool', 'content': 'one'}, {'role': 'tool', 'content': 'two'}",
      1));
  EXPECT_THAT(turns[0].messages, ElementsAre(AgentMessage{"user", "look\n\n[image_url]"},
                                             AgentMessage{"assistant", R"({"name":"f","arguments":"{}"})"},
                                             AgentMessage{"user", "one\n\ntwo"}));
}

TEST(AgentLog, ReadsAnthropicsBlocks) {
  const auto turns = convert_agent_log(log_text(
      "{'request': {'system': [{'type': 'text', 'text': 'S'}], 'tools': [{'name': 'f'}], 'messages': ["
      "{'role': 'user', 'content': 'A'}, {'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 'hm'}, "
      "{'type': 'tool_use', 'id': '1', 'name': 'f', 'input': {'x': 1}}]}, {'role': 'user', 'content': [{'type': "
      "'tool_result', 'tool_use_id': '1', 'content': [{'type': 'text', 'text': 'R'}]}]}]}, "
      "'response': {'type': 'message', 'content': [], 'usage': {'output_tokens': 12}}}"));
  EXPECT_THAT(turns[0].messages,
              ElementsAre(AgentMessage{"system", "S\n\n[{\"name\":\"f\"}]"}, AgentMessage{"user", "A"},
                          AgentMessage{"assistant", R"({"name":"f","arguments":{"x":1}})"}, AgentMessage{"user", "R"}));
  EXPECT_EQ(turns[0].output_tokens, 12);
}

TEST(AgentLog, EstimatesALengthFromTheReply) {
  const std::string request = "{'request': {'messages': [{'role': 'user', 'content': 'A'}]}, 'response': ";
  EXPECT_EQ(convert_agent_log(
                log_text(request + "{'choices': [{'message': {'role': 'assistant', 'content': '12345678'}}]}}"))[0]
                .output_tokens,
            2);
  EXPECT_EQ(convert_agent_log(log_text(request + "{'content': [{'type': 'text', 'text': '123456789012'}]}}"))[0]
                .output_tokens,
            3);
}

TEST(AgentLog, TimesCountFromTheFirstLine) {
  const std::string a = "{'role': 'user', 'content': 'A'}", b = "{'role': 'user', 'content': 'B'}";
  const auto turns = convert_agent_log(openai_line(a, 1, ", 'time': '2026-02-28T23:59:59.5Z', 'session': 'x'") +
                                       openai_line(b, 1, ", 'time': '2026-03-01T02:00:01+02:00', 'session': 'y'") +
                                       openai_line(b, 1, ", 'time': 1772323203, 'session': 'x'"));
  EXPECT_EQ(turns[0].time_s, 0);
  EXPECT_DOUBLE_EQ(*turns[1].time_s, 1.5);
  EXPECT_DOUBLE_EQ(*turns[2].time_s, 3.5);
  EXPECT_EQ(turns[1].session, "y");
  EXPECT_EQ(turns[2].session, "x");
  EXPECT_EQ(turns[2].keep, 0);  // nothing in common with the session's last request
}

TEST(AgentLog, ASessionMayBeginWithTheAssistant) {
  const auto turns = convert_agent_log(openai_line(
      "{'role': 'assistant', 'content': 'Hello'}, {'role': 'user', 'content': 'A'}", 1, ", 'session': 'x'"));
  EXPECT_THAT(turns[0].messages, ElementsAre(AgentMessage{"assistant", "Hello"}, AgentMessage{"user", "A"}));
}

TEST(AgentLog, NamesWhatIsWrong) {
  const std::string good = "'request': {'messages': [{'role': 'user', 'content': 'A'}]}, ";
  const std::string usage = "'response': {'usage': {'completion_tokens': 1}}";
  EXPECT_EQ(converting_error("{" + good + usage + "}"), "");
  for (const auto& [line, message] : std::initializer_list<std::pair<std::string, const char*>>{
           {"{" + usage + "}", "line 1: request: expected an object, found none"},
           {"{'request': {'messages': []}, " + usage + "}", "request.messages: expected an array with a message"},
           {"{'request': {'messages': [{'role': 'robot'}]}, " + usage + "}",
            "request.messages[0].role: expected system"},
           {"{'request': {'messages': [{'role': 'user', 'content': 3}]}, " + usage + "}",
            "request.messages[0].content: expected a string or an array, found 3"},
           {"{'request': {'messages': [{'role': 'user', 'content': [{}]}]}, " + usage + "}",
            "request.messages[0].content[0].type: expected a string"},
           {"{" + good + "'response': null}", "response: expected an object, found none"},
           {"{" + good + "'response': {}}", "response: expected usage or a reply, found neither"},
           {"{" + good + "'response': {'usage': {'output_tokens': -1}}}", "response.usage.output_tokens"},
           {"{" + good + usage + ", 'time': 'noon'}", "time: expected seconds or a time"},
           {"{" + good + usage + ", 'time': '2026-02-30T00:00:00Z'}", "time: expected seconds or a time"},
           {"{" + good + usage + ", 'time': '2026-02-03T00:00:00+2'}", "time: expected seconds or a time"},
           {"{" + good + usage + ", 'session': 5}", "session: expected a name, found 5"},
           {"{" + good + usage + "}\n{" + good + usage + ", 'time': 3}",
            "line 2: time: expected on each line or on none"},
           {"", "expected at least one line"},
       }) {
    EXPECT_THAT(converting_error(line), HasSubstr(message)) << line;
  }
}

TEST(AgentLog, ATraceOfALogIsRead) {
  const auto turns =
      convert_agent_log(openai_line(kLoggedSystem + "{'role': 'user', 'content': 'A'}", 7, ", 'time': 5.25") +
                        openai_line(kLoggedSystem + "{'role': 'user', 'content': 'B'}", 7, ", 'time': 6"));
  std::string trace;
  for (const AgentTurn& turn : turns) trace += trace_line(turn) + "\n";
  EXPECT_EQ(parse_agent_trace(trace), turns);
}

}  // namespace
}  // namespace smartkv
