#include "engine/sampling/stop_strings.h"

#include <gtest/gtest.h>

namespace smartkv {
namespace {

struct Result {
  std::string text;
  std::optional<std::string> matched;
};

Result run_matcher(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  Result result;
  for (const std::string& piece : pieces) {
    result.text += matcher.push(piece);
    if (matcher.matched()) break;
  }
  if (!matcher.matched()) result.text += matcher.flush();
  result.matched = matcher.matched();
  return result;
}

std::vector<std::string> single_bytes(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBegin) {
  StopMatcher matcher({"END", "\n\n"});
  EXPECT_EQ(matcher.push("tell me"), "tell me");
  EXPECT_EQ(matcher.push(" E"), " ");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("TER\n"), "ENTER");
  EXPECT_EQ(matcher.push("x\n"), "\nx");
  EXPECT_EQ(matcher.flush(), "\n");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, CutsTheTextBeforeTheMatch) {
  const Result result = run_matcher({"STOP"}, {"go S", "T", "OP and more"});
  EXPECT_EQ(result.text, "go ");
  EXPECT_EQ(result.matched, "STOP");
}

TEST(StopMatcher, PrefixesThatOverlapThemselves) {
  EXPECT_EQ(run_matcher({"aab"}, single_bytes("xaaab")).text, "xa");
  EXPECT_EQ(run_matcher({"abab"}, single_bytes("xabaabab!")).text, "xaba");
}

TEST(StopMatcher, TheFirstToEndWinsHoweverTheTextIsCut) {
  const std::string text = "one two three";
  for (const auto& pieces : {std::vector<std::string>{text}, single_bytes(text)}) {
    const Result result = run_matcher({"three", "wo", "two t", "two"}, pieces);
    EXPECT_EQ(result.text, "one ");
    EXPECT_EQ(result.matched, "two");  // ends where "wo" ends and is longer
  }
}

TEST(StopMatcher, StopStringsOfSeveralByteCharacters) {
  const Result result = run_matcher({"été"}, {"un ", "é", "t", "é chaud"});
  EXPECT_EQ(result.text, "un ");
  EXPECT_EQ(result.matched, "été");
  EXPECT_EQ(run_matcher({"été"}, {"é", "ta"}).text, "éta");
}

TEST(StopMatcher, WithoutStopStringsTextPasses) { EXPECT_EQ(run_matcher({}, {"a", "b"}).text, "ab"); }

}  // namespace
}  // namespace smartkv
