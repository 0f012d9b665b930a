#include "engine/torch/hidden_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

std::vector<int64_t> sentences(size_t n) {
  std::vector<int64_t> tokens;
  while (tokens.size() < n) {
    for (const char c : std::string_view("it rained again. ")) tokens.push_back(c);
  }
  tokens.resize(n);
  return tokens;
}

std::string hidden(size_t n, int64_t count, uint64_t seed) {
  std::string text;
  for (const int64_t token : hide_facts(ByteTokenizer(), sentences(n), count, seed)) {
    text += static_cast<char>(token);
  }
  return text;
}

TEST(HiddenFacts, AreToldEarlyAndAskedForAtTheEnd) {
  int64_t numbers = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const std::string text = hidden(4096, 6, seed);
    ASSERT_EQ(text.size(), 4096u);
    const std::string early = text.substr(0, 2048), late = text.substr(3072);
    for (size_t at = 0; (at = early.find_first_of("0123456789", at)) != std::string::npos;) {
      const size_t end = early.find_first_not_of("0123456789", at);
      EXPECT_THAT(late, HasSubstr(early.substr(at, end - at)));
      at = end;
      ++numbers;
    }
    EXPECT_EQ(text.substr(2048, 1024).find_first_of("0123456789"), std::string::npos);
  }
  EXPECT_GT(numbers, 8 * 3);
}

TEST(HiddenFacts, AreTheSameForTheSameSeed) {
  EXPECT_EQ(hidden(4096, 6, 1), hidden(4096, 6, 1));
  EXPECT_NE(hidden(4096, 6, 1), hidden(4096, 6, 2));
}

TEST(HiddenFacts, MustFit) {
  try {
    hidden(1024, 100, 1);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("facts: expected few enough that"));
    EXPECT_THAT(error.what(), HasSubstr("found 100"));
  }
}

}  // namespace
}  // namespace smartkv
