#include "lab/training/hidden_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <set>

#include "lab/evaluation/recall.h"
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

// Returns the runs of `n` words of a text, in lower case, that no end of a sentence interrupts.
std::set<std::string> runs_of_words(const std::string& text, size_t n) {
  std::set<std::string> runs;
  std::vector<std::string> words(1);
  const auto end_word = [&] {
    if (words.back().empty()) return;
    if (words.size() >= n) {
      std::string run;
      for (size_t i = words.size() - n; i < words.size(); ++i) run += (run.empty() ? "" : " ") + words[i];
      runs.insert(run);
    }
    words.emplace_back();
  };
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '\'') {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    end_word();
    if (c == '.') words.assign(1, "");
  }
  end_word();
  return runs;
}

// Returns the facts and questions of the recall evaluation, by kind of question and prompt. No words stand between
// them.
std::vector<std::vector<std::string>> evaluated() {
  std::vector<std::vector<std::string>> kinds;
  const std::vector<TokenId> haystack(1 << 15, '.');
  const auto add = [&](const RecallOptions& options) {
    constexpr int64_t kPrompts = 24;  // each person and word is in some prompt, none in all
    const int64_t kLength = options.task == "agent" ? 8192 : 2048;
    auto& texts = kinds.emplace_back();
    for (int64_t i = 0; i < kPrompts; ++i) {
      const RecallPrompt prompt = make_recall_prompt(ByteTokenizer(), haystack, options, kLength, i, kPrompts);
      texts.push_back(ByteTokenizer().decode(prompt.context, false));
      for (const RecallPrompt::Question& question : prompt.questions) texts.back() += ". " + question.text;
    }
  };
  RecallOptions options;
  options.render_chat = [](const nlohmann::ordered_json& messages, bool /*open*/) {
    std::string text;
    for (const auto& message : messages) {
      if (message.contains("content") && message["content"].is_string())
        text += message["content"].get<std::string>() + ". ";
    }
    return text;
  };
  for (const std::string& task : recall_tasks()) {
    options.task = task;
    if (task != "facts") add(options);
  }
  options.task = "facts";
  for (const std::string& wording : recall_wordings()) {
    options.wording = wording;
    for (options.facts_asked = 1; options.facts_asked <= 2; ++options.facts_asked) add(options);
  }
  return kinds;
}

std::string all_hidden() {
  std::string text;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const int64_t token : hide_facts(ByteTokenizer(), std::vector<int64_t>(1 << 14, '.'), 16, seed)) {
      text += static_cast<char>(token);
    }
  }
  return text;
}

std::vector<std::string> common(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

TEST(HiddenFacts, ShareNoThreeWordsInARowWithTheEvaluation) {
  std::set<std::string> seen;
  for (const auto& texts : evaluated()) {
    for (const std::string& text : texts) seen.merge(runs_of_words(text, 3));
  }
  EXPECT_THAT(seen, testing::Contains("opens the locker"));
  EXPECT_THAT(common(seen, runs_of_words(all_hidden(), 3)), testing::IsEmpty());
}

// Words that differ between prompts of a kind are drawn: names, listed words, letters of variables.
TEST(HiddenFacts, ShareNoNameAndNoListedWordWithTheEvaluation) {
  std::set<std::string> drawn;
  for (const auto& texts : evaluated()) {
    std::map<std::string, size_t> prompts;  // number of prompts with the word
    for (const std::string& text : texts) {
      for (const std::string& word : runs_of_words(text, 1)) ++prompts[word];
    }
    for (const auto& [word, n] : prompts) {
      if (n < texts.size()) drawn.insert(word);
    }
  }
  EXPECT_THAT(drawn, testing::IsSupersetOf({"alice", "violin"}));
  EXPECT_THAT(common(drawn, runs_of_words(all_hidden(), 1)), testing::IsEmpty());
}

TEST(HiddenFacts, MayComeInTwoStatements) {
  const std::string text = all_hidden();
  for (const char* statement : {"\n\nset ", "\n\ncopy ", " left the papers with ", " had been given were locked in "}) {
    EXPECT_THAT(text, HasSubstr(statement));
  }
  EXPECT_EQ(text.find_first_of("{}"), std::string::npos);  // all placeholders are filled in
}

TEST(HiddenFacts, MustFit) {
  try {
    hidden(1024, 100, 1);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("facts: expected at most"));
    EXPECT_THAT(error.what(), HasSubstr("found 100"));
  }
}

}  // namespace
}  // namespace smartkv
