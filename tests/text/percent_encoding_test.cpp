#include "engine/text/percent_encoding.h"

#include <gtest/gtest.h>

namespace smartkv {
namespace {

TEST(PercentEncoding, DecodesBytesInEitherCase) {
  EXPECT_EQ(percent_decoded("a%2Fb%2f%e2%82%AC"), "a/b/\xe2\x82\xac");
  EXPECT_EQ(percent_decoded("%2541"), "%41");  // once only
  EXPECT_EQ(percent_decoded(std::string_view("%00", 3)), std::string(1, '\0'));
}

TEST(PercentEncoding, OtherPercentSignsStay) {
  for (const char* text : {"", "%", "100%", "%4", "%g1", "%1g", "%%", "+", "%u0041"}) {
    EXPECT_EQ(percent_decoded(text), text);
  }
}

TEST(PercentEncoding, HexadecimalDigitsAreLettersAToF) {
  EXPECT_EQ(hex_digit('0'), 0);
  EXPECT_EQ(hex_digit('9'), 9);
  EXPECT_EQ(hex_digit('a'), 10);
  EXPECT_EQ(hex_digit('F'), 15);
  for (const char c : {'g', 'G', '@', '`', '/', ':', ' ', '\0', '\x81', '\xc1'}) EXPECT_EQ(hex_digit(c), -1);
}

}  // namespace
}  // namespace smartkv
