// Log probabilities come with the text to which they belong.
#include "server/openai/logprobs.h"

#include <gtest/gtest.h>

#include "tests/server/fake_engine.h"

namespace smartkv::openai {
namespace {

using smartkv::test::ByteTokenizer;

// Returns an event with these tokens, given as text, that shows `text` of the answer.
GenerationEvent event(const std::string& tokens, const std::string& text) {
  GenerationEvent result;
  result.text = text;
  for (const char c : tokens) result.tokens.push_back(static_cast<unsigned char>(c));
  for (const TokenId token : result.tokens) result.logprobs.push_back({.token = token, .logprob = -1, .top = {}});
  return result;
}

GenerationEvent last(GenerationEvent event, std::optional<std::string> stop) {
  event.finish = FinishReason::kStop;
  event.stop_string = std::move(stop);
  return event;
}

class ShownLogprobsTest : public ::testing::Test {
 protected:
  std::string take(const GenerationEvent& event) {
    std::string tokens;
    for (const TokenLogprob& logprob : shown_.take(event)) tokens += tokenizer_.token_bytes(logprob.token);
    return tokens;
  }

  ByteTokenizer tokenizer_;
  ShownLogprobs shown_{tokenizer_, true};
};

TEST_F(ShownLogprobsTest, ComeWithTheirText) {
  EXPECT_EQ(take(event("ab", "ab")), "ab");
  EXPECT_EQ(take(event("cST", "c")), "c");  // "ST" may begin "STOP"
  EXPECT_EQ(take(event("x", "STx")), "STx");
  EXPECT_EQ(take(last(event("d", "d"), std::nullopt)), "d");
}

TEST_F(ShownLogprobsTest, DoNotComeOfAStopString) {
  EXPECT_EQ(take(event("abST", "ab")), "ab");
  EXPECT_EQ(take(last(event("OP", ""), "STOP")), "");
}

TEST_F(ShownLogprobsTest, OfHalfACharacterWaitForItsText) {
  EXPECT_EQ(take(event("\xc3", "")), "");
  EXPECT_EQ(take(event("\xa9", "\xc3\xa9")), "\xc3\xa9");
  EXPECT_EQ(take(event("\xc3", "")), "");
  EXPECT_EQ(take(last(event("\xa9", ""), "\xc3\xa9")), "");  // completes the stop string
}

TEST_F(ShownLogprobsTest, OfSpecialTokensComeInOrder) {
  GenerationEvent both = event("ab", "ab");
  both.tokens.insert(both.tokens.begin() + 1, ByteTokenizer::kImEnd);
  both.logprobs.insert(both.logprobs.begin() + 1, {.token = ByteTokenizer::kImEnd, .logprob = -1, .top = {}});
  EXPECT_EQ(take(both), "a<|im_end|>b");
  GenerationEvent end = last(event("", ""), std::nullopt);
  end.tokens.push_back(ByteTokenizer::kEos);
  end.logprobs.push_back({.token = ByteTokenizer::kEos, .logprob = -1, .top = {}});
  EXPECT_EQ(take(end), "</s>");
}

TEST_F(ShownLogprobsTest, StayOfATokenThatIsPartlyShown) {
  ShownLogprobs shown(tokenizer_, false);  // "<s>" counts as text here
  GenerationEvent end = last(event("", "<"), "s>");
  end.tokens.push_back(ByteTokenizer::kBos);
  end.logprobs.push_back({.token = ByteTokenizer::kBos, .logprob = -1, .top = {}});
  EXPECT_EQ(shown.take(end).size(), 1u);
}

}  // namespace
}  // namespace smartkv::openai
