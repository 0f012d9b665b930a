#include <gtest/gtest.h>

#include "engine/sampling/regex_grammar.h"
#include "tests/engine/sampling/grammar_match.h"

namespace smartkv {
namespace {

struct RegexCase {
  const char* regex;
  std::vector<std::string> match, other;
};

TEST(RegexGrammar, TakesWhatMatchesFromEndToEnd) {
  const RegexCase cases[] = {
      {"abc", {"abc"}, {"ab", "abcd", ""}},
      {"^a|bc$", {"a", "bc"}, {"abc"}},
      {"a*b+c?", {"b", "aabbc"}, {"a", "bcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"x{2}y{1,}", {"xxy", "xxyyy"}, {"xy"}},
      {"a{,2}", {"", "aa"}, {"aaa"}},
      {"[ab]{300,400}", {std::string(300, 'a'), std::string(400, 'b')}, {std::string(299, 'a'), std::string(401, 'b')}},
      {"a{b}", {"a{b}"}, {"ab"}},
      {"[a-c_-]+", {"a-c_"}, {"d", ""}},
      {"[^a-c]", {"d", "é"}, {"a", "dd"}},
      {"\\d{3}-\\w\\s\\S", {"123-x !"}, {"12-x !"}},
      {"\\(\\.\\)\\\\\\x41\\u00e9", {"(.)\\Aé"}, {"(x)\\Aé"}},
      {"(?:a|(?<name>b))c", {"ac", "bc"}, {"c"}},
      {"a.c", {"abc", "aéc"}, {"a\nc", "ac"}},
      {".*?", {"", "anything"}, {"a\nb"}},
      {"", {""}, {"a"}},
  };
  for (const RegexCase& one : cases) {
    const std::string grammar = "root ::= " + regex_grammar(one.regex, TextForm::kPlain, false).ebnf + "\n";
    for (const std::string& text : one.match)
      EXPECT_TRUE(obeys(grammar, text)) << one.regex << " on " << text << "\n" << grammar;
    for (const std::string& text : one.other)
      EXPECT_FALSE(obeys(grammar, text)) << one.regex << " on " << text << "\n" << grammar;
  }
}

TEST(RegexGrammar, KnowsTheLengthsOfMatches) {
  const auto lengths = [](const char* regex, bool search) {
    const RegexGrammar grammar = regex_grammar(regex, TextForm::kJsonString, search);
    return std::pair(grammar.min_length, grammar.max_length);
  };
  EXPECT_EQ(lengths("^(ab|c){1,3}$", true), (std::pair<int64_t, int64_t>(1, 6)));
  EXPECT_EQ(lengths("^é?$", true), (std::pair<int64_t, int64_t>(0, 1)));
  EXPECT_EQ(lengths("ab", true), (std::pair<int64_t, int64_t>(2, kUnbounded)));
  EXPECT_EQ(lengths("ab", false), (std::pair<int64_t, int64_t>(2, 2)));
}

TEST(RegexGrammar, RefusesWhatIsNotRegular) {
  for (const char* regex :
       {"a(?=b)", "(?!a)", "(?<=a)b", "(?i)a", "(a)\\1", "\\bword", "a$b",    "(^a)",      "(",
        ")",      "[",     "a**b(",   "*a",    "a++",    "a{3,2}",  "\\p{L}", "a{999999}", "((a{200}){200}){200}",
        "[b-a]",  "\xff"}) {
    try {
      regex_grammar(regex, TextForm::kPlain, false);
      ADD_FAILURE() << regex << " was taken";
    } catch (const GrammarError& error) {
      EXPECT_NE(std::string(error.what()).find("regular expression"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace smartkv
