// The thinking of an answer, token by token.
#include "engine/sampling/thinking.h"

#include <gtest/gtest.h>

#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

constexpr TokenId kThinkingEnd = 258;

std::vector<TokenId> bytes(std::string_view text) { return ByteTokenizer().encode(text, {}); }

Thinking think_marks() {
  return {.open = "<t>", .close = "</t>", .opening = bytes("<t>"), .closing = bytes("\n</t>"), .between = bytes("\n")};
}

class ThinkingTest : public ::testing::Test {
 protected:
  std::unique_ptr<Constraint> start(const Thinking& thinking, const std::string& grammar = "") {
    std::unique_ptr<Constraint> answer;
    if (!grammar.empty()) answer = compiler_.compile(grammar)->start();
    const TokenId ends[] = {kThinkingEnd};
    return constrain_thinking(thinking, tokenizer_, ends, std::move(answer));
  }
  static bool may_come(Constraint* constraint, TokenId token) {
    const std::span<const uint32_t> mask = constraint->allowed();
    return mask.empty() || (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }
  // Returns the part of the text that is accepted, token by token. Each token that is accepted must be in the mask.
  static std::string taken(Constraint* constraint, std::string_view text) {
    std::string result;
    for (const char c : text) {
      const auto token = static_cast<unsigned char>(c);
      const bool masked = may_come(constraint, token);
      if (!constraint->accept(token)) break;
      EXPECT_TRUE(masked) << result << c;
      result += c;
    }
    return result;
  }

  ByteTokenizer tokenizer_;
  GrammarCompiler compiler_{tokenizer_, tokenizer_.vocab_size(), {kThinkingEnd}};
};

TEST_F(ThinkingTest, CountsTheTokensBetweenTheMarks) {
  const auto free = start(think_marks());
  EXPECT_EQ(taken(free.get(), "<t>abc"), "<t>abc");
  EXPECT_TRUE(free->thinking());
  EXPECT_EQ(free->reasoning_tokens(), 3);
  taken(free.get(), "</t>no <t>more");
  EXPECT_FALSE(free->thinking());
  EXPECT_EQ(free->reasoning_tokens(), 6);  // the bytes of the mark before its last one
  const auto none = start(think_marks());
  taken(none.get(), "an answer <t>without");
  EXPECT_EQ(none->reasoning_tokens(), 0);
}

TEST_F(ThinkingTest, AGrammarAppliesBehindTheThinking) {
  const char* const grammar = "root ::= \"a\" | \"<b\"";
  for (const std::string before : {"", "<t>any </b> text</t>\n", "<t></t>\n"}) {
    for (const std::string answer : {"a", "<b"}) {
      const auto constraint = start(think_marks(), grammar);
      EXPECT_EQ(taken(constraint.get(), before + answer + "c"), before + answer);
      EXPECT_TRUE(may_come(constraint.get(), kThinkingEnd));
    }
  }
  const auto constraint = start(think_marks(), grammar);
  EXPECT_EQ(taken(constraint.get(), "b"), "");
  EXPECT_EQ(taken(constraint.get(), "<x"), "<");
  EXPECT_EQ(taken(constraint.get(), "t>x"), "t>x");
  EXPECT_FALSE(may_come(constraint.get(), kThinkingEnd)) << "the answer must not end before the grammar begins";
  EXPECT_EQ(taken(constraint.get(), "</t>a"), "</t>") << "the text between thinking and answer comes first";
}

TEST_F(ThinkingTest, ABudgetEndsTheThinking) {
  Thinking thinking = think_marks();
  thinking.budget = 3;
  for (const bool opened : {true, false}) {
    thinking.opened = opened;
    for (const char* grammar : {"", "root ::= \"a\""}) {
      const auto constraint = start(thinking, grammar);
      if (!opened) taken(constraint.get(), "<t>");
      EXPECT_EQ(taken(constraint.get(), "xyz"), "xyz");
      EXPECT_EQ(taken(constraint.get(), "more"), "");
      EXPECT_EQ(taken(constraint.get(), "\n</t>\na"), "\n</t>\na");
      EXPECT_EQ(constraint->reasoning_tokens(), 3);
      EXPECT_EQ(taken(constraint.get(), "b"), *grammar == 0 ? "b" : "");
    }
  }
  thinking.budget = 0;
  thinking.opened = true;
  EXPECT_EQ(taken(start(thinking).get(), "\n</t>\nb"), "\n</t>\nb");
}

TEST_F(ThinkingTest, ThinkingMayBeRequiredAndMayRepeat) {
  Thinking thinking = think_marks();
  thinking.always = thinking.repeats = true;
  EXPECT_EQ(taken(start(thinking, "root ::= \"a\"").get(), "a"), "");
  EXPECT_EQ(taken(start(thinking, "root ::= \"a\"").get(), "<t></t>\na"), "<t></t>\na");
  thinking.budget = 8;
  const auto constraint = start(thinking);
  EXPECT_EQ(taken(constraint.get(), "<t>xy</t> <t>za"), "<t>xy</t> <t>za");
  EXPECT_EQ(constraint->reasoning_tokens(), 7);
  EXPECT_EQ(taken(constraint.get(), "bc"), "b");
}

TEST_F(ThinkingTest, EachTokenCanBeRolledBack) {
  Thinking thinking = think_marks();
  thinking.budget = 6;
  const std::string text = "<t>x</tyz\n</t>\nab";
  const auto plain = start(thinking, "root ::= \"ab\" | \"<a\"");
  ASSERT_EQ(taken(plain.get(), text), text);
  for (size_t n = 1; n <= text.size(); ++n) {
    const auto constraint = start(thinking, "root ::= \"ab\" | \"<a\"");
    for (size_t at = 0; at + n <= text.size(); at += n) {
      ASSERT_EQ(taken(constraint.get(), text.substr(at)), text.substr(at));
      constraint->rollback(static_cast<int64_t>(text.size() - at));
      EXPECT_EQ(taken(constraint.get(), text.substr(at, n)), text.substr(at, n));
    }
  }
  plain->rollback(static_cast<int64_t>(text.size()));
  EXPECT_EQ(plain->reasoning_tokens(), 0);
  EXPECT_EQ(taken(plain.get(), "<ab"), "<a") << "the grammar, too, is at its beginning";
}

}  // namespace
}  // namespace smartkv
