// Lines of system messages that change between requests.
#include "server/openai/changing_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/commands/options.h"
#include "server/openai/api_request.h"
#include "server/openai/tokenize.h"
#include "tests/server/test_server.h"

namespace smartkv::openai {
namespace {

using ::testing::HasSubstr;

std::string changed_text(const ChangingLines& lines, std::vector<std::pair<std::string, std::string>> messages,
                         LineChanges* changes = nullptr) {
  Json list = Json::array();
  for (const auto& [role, content] : messages) list.push_back({{"role", role}, {"content", content}});
  const LineChanges found = lines.apply(&list);
  if (changes != nullptr) *changes = found;
  std::string text;
  for (const Json& message : list)
    text += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "|";
  return text;
}

TEST(ChangingLinesTest, DropsAndMovesWholeLines) {
  const ChangingLines lines({"x-billing:"}, {"Today's date: ", "Working directory: "});
  LineChanges changes;
  EXPECT_EQ(changed_text(lines,
                         {{"system", "x-billing: 1\nBe brief.\nToday's date: May 1\nWorking directory: /a\nBye."},
                          {"user", "Hi"}},
                         &changes),
            "system:Be brief.\nBye.|user:Hi\n\nToday's date: May 1\nWorking directory: /a|");
  EXPECT_EQ(changes.dropped, 1);
  EXPECT_EQ(changes.moved, 2);
}

TEST(ChangingLinesTest, OnlyLinesThatBeginWithAMatchInSystemMessages) {
  const ChangingLines lines({"x-billing:"}, {});
  EXPECT_EQ(
      changed_text(lines, {{"system", "not x-billing: 1"}, {"user", "x-billing: 2"}, {"assistant", "x-billing:"}}),
      "system:not x-billing: 1|user:x-billing: 2|assistant:x-billing:|");
}

TEST(ChangingLinesTest, MovedLinesStandBehindTheLastMessageThatIsNotTheAssistants) {
  const ChangingLines lines({}, {"now: "});
  EXPECT_EQ(changed_text(lines, {{"system", "a\nnow: 1"}, {"user", "u"}, {"assistant", "b"}, {"tool", "r"}}),
            "system:a|user:u|assistant:b|tool:r\n\nnow: 1|");
  EXPECT_EQ(changed_text(lines, {{"system", "a\nnow: 1"}, {"user", "u"}, {"assistant", "begun"}}),
            "system:a|user:u\n\nnow: 1|assistant:begun|");
  EXPECT_EQ(changed_text(lines, {{"system", "now: 1"}, {"assistant", "b"}}), "system:now: 1|assistant:b|");
  EXPECT_EQ(changed_text(lines, {{"system", "now: 1"}}), "system:now: 1|");
}

TEST(ChangingLinesTest, ASystemMessageOfNothingElseGoes) {
  const ChangingLines lines({"x: "}, {});
  EXPECT_EQ(changed_text(lines, {{"system", "x: 1"}, {"system", "Be brief."}, {"user", "u"}}),
            "system:Be brief.|user:u|");
  EXPECT_EQ(changed_text(lines, {{"system", "x: 1\nx: 2"}}), "system:|");
  EXPECT_EQ(changed_text(lines, {{"system", ""}, {"user", "u"}}), "system:|user:u|");
}

TEST(ChangingLinesTest, WrongPatternsAreErrorsThatNameTheOption) {
  const auto error_of = [](std::vector<std::string> dropped, std::vector<std::string> moved) -> std::string {
    try {
      ChangingLines(dropped, moved);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_THAT(error_of({"a", "("}, {}), HasSubstr("dropped_lines: expected regular expressions, found \"(\""));
  EXPECT_THAT(error_of({}, {"[z-a]"}), HasSubstr("moved_lines"));
  EXPECT_THAT(error_of({"(a)\\1"}, {}), HasSubstr("back references"));
  EXPECT_THAT(error_of({}, {std::string(2000, 'a')}), HasSubstr("longer than 1024 bytes"));
  EXPECT_THAT(error_of(std::vector<std::string>(65, "a"), {}), HasSubstr("at most 64 patterns"));
  EXPECT_EQ(error_of({"x-(a|b)+: .*$"}, {"^Today"}), "taken");
}

// A backtracking matcher would take exponential time for this expression.
TEST(ChangingLinesTest, TimeIsInProportionToTheText) {
  const ChangingLines lines({"(a+)+b", "(x|xx|xxx)*y"}, {});
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::string(5000, 'a') + "\n" + std::string(5000, 'x') + "\n";
  EXPECT_EQ(changed_text(lines, {{"system", text}}), "system:" + text + "|");
}

TEST(ChangingLinesTest, LongLinesAreCutBetweenCharacters) {
  const ChangingLines lines({"é+", "x+$"}, {});
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "é";
  EXPECT_EQ(changed_text(lines, {{"system", "a" + text}, {"user", "u"}}), "system:a" + text + "|user:u|");
  EXPECT_EQ(changed_text(lines, {{"system", text}, {"user", "u"}}), "user:u|");
  EXPECT_EQ(changed_text(lines, {{"system", "x" + text}, {"user", "u"}}), "system:x" + text + "|user:u|");
  const std::string longer = std::string(300, 'x') + "y";  // the line does not end where it is cut
  EXPECT_EQ(changed_text(lines, {{"system", longer}}), "system:" + longer + "|");
}

class ChangingLinesServer : public ::testing::Test {
 protected:
  ChangingLinesServer() { server_.service.model.changing_lines = ChangingLines({"x-billing: "}, {"now: "}); }
  std::string prompt(const std::string& path, const std::string& body) {
    answer_ = Json::parse(server_.post(path, body)->body);
    return server_.engine.tokenizer().decode(server_.engine.submitted().back().prompt, false);
  }

  smartkv::test::TestServer server_;
  Json answer_;
};

TEST_F(ChangingLinesServer, EveryApiHasStablePrefixesAndUsageSaysSo) {
  const std::string expected = "system:Be brief.\nuser:hi\n\nnow: 12:00\nassistant:";
  const Json changes = {{"moved", 1}, {"dropped", 1}};
  EXPECT_EQ(prompt("/v1/chat/completions",
                   R"({"messages": [{"role": "system", "content": "x-billing: 7\nBe brief.\nnow: 12:00"},
                                    {"role": "user", "content": "hi"}]})"),
            expected);
  EXPECT_EQ(answer_["usage"]["prompt_tokens_details"]["changing_lines"], changes);
  EXPECT_EQ(prompt("/v1/responses", R"({"instructions": "x-billing: 7\nBe brief.\nnow: 12:00", "input": "hi"})"),
            expected);
  EXPECT_EQ(answer_["usage"]["input_tokens_details"]["changing_lines"], changes);
  EXPECT_EQ(prompt("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
      "system": [{"type": "text", "text": "x-billing: 7"}, {"type": "text", "text": "Be brief.\nnow: 12:00"}]})"),
            expected);
  EXPECT_EQ(answer_["usage"]["smartkv"]["prompt_tokens_details"]["changing_lines"], changes);
}

TEST_F(ChangingLinesServer, UsageIsSilentWithoutChanges) {
  prompt("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_FALSE(answer_["usage"]["prompt_tokens_details"].contains("changing_lines"));
}

TEST_F(ChangingLinesServer, TokenizeShowsTheChangedPrompt) {
  const char* body =
      R"({"messages": [{"role": "system", "content": "x-billing: 7\na"}, {"role": "user", "content": "b"}]})";
  const Json tokens = Json::parse(server_.post("/tokenize", body)->body);
  EXPECT_EQ(tokens["count"], std::string("system:a\nuser:b\nassistant:").size());
}

TEST(ChangingLinesOptions, TheBillingHeaderOfClaudeCodeIsDroppedByDefault) {
  const ServerOptions options;
  const ChangingLines lines(options.dropped_lines, options.moved_lines);
  EXPECT_EQ(changed_text(lines, {{"system", "x-anthropic-billing-header: cc_version=2.1; cch=1f2;\nYou are"}}),
            "system:You are|");
}

}  // namespace
}  // namespace smartkv::openai
