#include "cache/boundaries.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

std::vector<int64_t> up_to(const Boundaries& boundaries, int64_t end) {
  std::vector<int64_t> found;
  for (int64_t at = boundaries.after(0); at <= end; at = boundaries.after(at)) found.push_back(at);
  return found;
}

TEST(Boundaries, OfAPromptLieAStrideApartAndAtItsEnd) {
  const Boundaries boundaries{64, 512, 1300};
  EXPECT_EQ(up_to(boundaries, 1500), (std::vector<int64_t>{512, 1024, 1300, 1344, 1408, 1472}));
  EXPECT_EQ(boundaries.leaving(1300), 1216);
  EXPECT_EQ(boundaries.next(1100), 1300);
}

TEST(Boundaries, OfAShortPromptAreThoseOfNone) {
  EXPECT_EQ(up_to({64, 512, 100}, 300), up_to({64, 512, 0}, 300));
  EXPECT_EQ(up_to({64, 512, 0}, 300), (std::vector<int64_t>{128, 192, 256}));
}

TEST(Boundaries, APageLeavesAsSoonAsTheWindowIsFullWithoutIt) {
  EXPECT_EQ(up_to({20, 512, 0}, 300), (std::vector<int64_t>{84, 148, 212, 276}));
  EXPECT_EQ(up_to({20, 512, 140}, 300), (std::vector<int64_t>{140, 148, 212, 276}));
  EXPECT_EQ(up_to({0, 512, 100}, 300), (std::vector<int64_t>{100, 128, 192, 256}));
}

TEST(Boundaries, WithoutAStrideThePromptEndsBeforeAnythingLeaves) {
  EXPECT_EQ(up_to({128, Boundaries::kNever, 1000}, 1100), (std::vector<int64_t>{1000, 1024, 1088}));
  EXPECT_EQ((Boundaries{128, Boundaries::kNever, 1000}.most_in_tail(2000)), 1000);
  EXPECT_EQ((Boundaries{64, 512, 1000}.most_in_tail(2000)), 576);
  EXPECT_EQ((Boundaries{64, 512, 1000}.most_in_tail(50)), 50);
}

// Admission counts the bound for every sequence. It must hold, and be reached if the prompt is shorter than the window.
TEST(Boundaries, TheTailIsAsLongAsTheySay) {
  for (const int64_t window : {0, 20, 64, 192}) {
    for (const int64_t stride : {int64_t{64}, int64_t{512}, Boundaries::kNever}) {
      for (int64_t prompt = 0; prompt < 1100; prompt += 7) {
        const Boundaries boundaries{window, stride, prompt};
        int64_t longest = 0, left = 0;
        for (const int64_t at : up_to(boundaries, 2000)) {
          longest = std::max(longest, at - left);
          left = boundaries.leaving(at);
        }
        EXPECT_GE(boundaries.most_in_tail(2000), longest) << window << ", " << stride << ", " << prompt;
        if (prompt < window) {
          EXPECT_EQ(boundaries.most_in_tail(2000), longest) << window << ", " << stride << ", " << prompt;
        }
      }
    }
  }
}

TEST(Boundaries, AgreeAsLongAsPromptsDo) {
  const Boundaries mine{64, 512, 1300}, other{64, 512, 2000};
  EXPECT_TRUE(mine.agree(other, 1290, 8));
  EXPECT_FALSE(mine.agree(other, 1295, 8));  // among the probe queries before the boundary at 1,300
  EXPECT_TRUE(mine.agree(other, 1299, 0));
  EXPECT_FALSE(mine.agree(other, 1300, 0));
}

}  // namespace
}  // namespace smartkv
