// Answers with thinking, in pieces of every size.
#include "server/openai/answer_parser.h"

#include <gtest/gtest.h>

namespace smartkv::openai {
namespace {

ApiRequest request_with(std::optional<Thinking> thinking, bool channels = false) {
  ApiRequest request;
  request.chat = true;
  request.channels = channels;
  request.generations.emplace_back().thinking = std::move(thinking);
  return request;
}

Thinking marks_of(const char* open, const char* close) {
  Thinking thinking;
  thinking.open = open;
  thinking.close = close;
  return thinking;
}

Thinking think_tags(bool opened) {
  Thinking thinking = marks_of("<think>", "</think>");
  thinking.opened = opened;
  return thinking;
}

// Returns an answer as "(THINKING)TEXT|FUNCTION:ARGUMENTS". The answer comes in two pieces that part at every byte, and
// in single bytes; all results must be equal.
std::string read_answer(const ApiRequest& request, const std::string& answer,
                        FinishReason finish = FinishReason::kStop) {
  const auto read = [&](const std::vector<std::string>& texts) {
    AnswerParser parser(request);
    std::string thinking, result;
    for (size_t i = 0; i < texts.size(); ++i) {
      GenerationEvent event;
      event.text = texts[i];
      if (i + 1 == texts.size()) event.finish = finish;
      for (const AnswerPiece& piece : parser.take(event)) {
        thinking += piece.reasoning;
        result += piece.text;
        if (!piece.name.empty()) result += "|" + piece.name + ":";
        result += piece.arguments;
      }
    }
    return (thinking.empty() ? "" : "(" + thinking + ")") + result;
  };
  const std::string whole = read({answer});
  std::vector<std::string> bytes;
  for (size_t i = 0; i < answer.size(); ++i) {
    bytes.emplace_back(1, answer[i]);
    EXPECT_EQ(read({answer.substr(0, i), answer.substr(i)}), whole) << "split at " << i;
  }
  bytes.emplace_back();
  EXPECT_EQ(read(bytes), whole);
  return whole;
}

TEST(AnswerParser, PartsThinkingFromTheAnswer) {
  const ApiRequest open = request_with(think_tags(true)), closed = request_with(think_tags(false)),
                   none = request_with(std::nullopt);
  EXPECT_EQ(read_answer(closed, "<think>\nWhy?\n\nSo.\n</think>\n\nBecause."), "(Why?\n\nSo.)Because.");
  EXPECT_EQ(read_answer(closed, "\n<think>a</think>b"), "(a)b");
  EXPECT_EQ(read_answer(closed, "Plain <think>text</think>"), "Plain <think>text</think>");
  EXPECT_EQ(read_answer(closed, "  <thin air"), "  <thin air");
  EXPECT_EQ(read_answer(closed, "<think>\n\n</think>\n\nb"), "b");
  EXPECT_EQ(read_answer(open, "\nWhy < that </ think?</think>\n\nb </think>"), "(Why < that </ think?)b </think>");
  EXPECT_EQ(read_answer(open, "It was cut </thi"), "(It was cut </thi)");
  EXPECT_EQ(read_answer(open, "</think>"), "");
  // A limit of tokens may end an answer within the mark that a budget writes.
  EXPECT_EQ(read_answer(open, "Enough.\n</thi", FinishReason::kLength), "(Enough.)");
  EXPECT_EQ(read_answer(open, "</thi", FinishReason::kLength), "");
  EXPECT_EQ(read_answer(open, "a <", FinishReason::kLength), "(a <)");
  EXPECT_EQ(read_answer(none, "<think>a</think>b"), "<think>a</think>b");
}

TEST(AnswerParser, FindsCallsBehindTheThinking) {
  ApiRequest request = request_with(think_tags(false));
  request.tools.emplace();
  request.tools->functions.push_back({.name = "f", .declaration = {}, .parameters = {}, .path = {}});
  request.tools->settle(ToolForm::kHermes);
  EXPECT_EQ(read_answer(request,
                        "<think>Call <tool_call>?</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                        "{\"n\": 1}}\n</tool_call>"),
            "(Call <tool_call>?)|f:{\"n\": 1}");
}

TEST(AnswerParser, ReadsChannels) {
  const Thinking analysis = marks_of("<|channel|>analysis<|message|>", "<|end|>");
  ApiRequest request = request_with(analysis, true);
  const std::string thinking = "<|channel|>analysis<|message|>Hm < <|end|>", next = "<|start|>assistant";
  const std::string final = next + "<|channel|>final<|message|>Yes.",
                    call = next + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\":1}";
  EXPECT_EQ(read_answer(request, thinking + final), "(Hm < )Yes.");
  EXPECT_EQ(read_answer(request, "<|channel|>final<|message|>Yes."), "Yes.");
  EXPECT_EQ(read_answer(request, thinking + next + "<|channel|>analysis<|message|>More<|end|>" + final),
            "(Hm < \n\nMore)Yes.");
  EXPECT_EQ(read_answer(request, thinking + next + "<|channel|>commentary<|message|>First<|end|>" + final),
            "(Hm < )First\n\nYes.");
  EXPECT_EQ(read_answer(request, thinking + call), "(Hm < ){\"n\":1}") << "a call is text where there are no tools";
  EXPECT_EQ(read_answer(request, "Without a channel"), "Without a channel");
  EXPECT_EQ(read_answer(request, thinking + next + "<|chan"), "(Hm < )");
  request.tools.emplace();
  EXPECT_EQ(read_answer(request, thinking + call + "<|call|>"), "(Hm < )|f:{\"n\":1}");
  EXPECT_EQ(read_answer(request, thinking + next + " to=functions.f<|channel|>commentary json<|message|>"),
            "(Hm < )|f:");
  EXPECT_EQ(read_answer(request, thinking + call + "<|call|>" + call), "(Hm < )|f:{\"n\":1}|f:{\"n\":1}");
  EXPECT_EQ(read_answer(request_with(std::nullopt, true), "es.<|return|>"), "es.") << "the prompt has begun the text";
}

}  // namespace
}  // namespace smartkv::openai
