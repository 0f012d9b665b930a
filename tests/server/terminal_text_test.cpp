#include "server/commands/terminal_text.h"

#include <gtest/gtest.h>

namespace smartkv {
namespace {

// Expects this result for the text as a whole, and byte by byte.
void expect_clean(const std::string& text, const std::string& expected) {
  EXPECT_EQ(TerminalText().clean(text), expected);
  TerminalText pieces;
  std::string joined;
  for (const char byte : text) joined += pieces.clean({&byte, 1});
  EXPECT_EQ(joined, expected);
}

TEST(TerminalText, LeavesTextAlone) {
  expect_clean("one\n\ttwo é ü € 漢 😀 \xc2\xa0.", "one\n\ttwo é ü € 漢 😀 \xc2\xa0.");
}

TEST(TerminalText, RemovesEscapeSequencesAndControls) {
  expect_clean("a\033[31mb\033[0mc", "abc");
  expect_clean("a\033[2J\033[1;1Hb", "ab");
  expect_clean("a\033]0;title\ab\033]8;;http://x\033\\c", "abc");
  expect_clean("a\033]52;c;cm0gLXJm\ab", "ab");  // writes to the clipboard
  expect_clean("a\033P1$r0m\033\\b\033cc\033(Bd", "abcd");
  expect_clean(
      "a\xc2\x9b"
      "31mb\xc2\x9d"
      "0;title\ac\xc2\x85"
      "d",
      "abcd");
  expect_clean(std::string("a\b\b\rb\x7f\0c", 8), "abc");
  expect_clean(std::string("a\0b", 3), "ab");
}

TEST(TerminalText, ASequenceThatNothingEndsEndsWithItsLine) {
  expect_clean("a\033]0;title\nb", "a\nb");
  expect_clean("a\033[12;\nb\033", "a\nb");
  expect_clean("a\033[31\033[0mb", "ab");
}

}  // namespace
}  // namespace smartkv
