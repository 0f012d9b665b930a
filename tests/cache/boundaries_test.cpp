#include "cache/boundaries.h"

#include <tuple>
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
}

TEST(Boundaries, TheLastAndTheNextAreThoseThatFollowEachOther) {
  for (const int64_t window : {int64_t{0}, int64_t{20}, int64_t{64}, int64_t{70}, int64_t{192}, Boundaries::kNever}) {
    for (const int64_t stride : {int64_t{64}, int64_t{512}, Boundaries::kNever}) {
      for (int64_t prompt = 0; prompt < 1100; prompt += 7) {
        const Boundaries boundaries{window, stride, prompt};
        int64_t last = 0, next = boundaries.after(0);
        for (int64_t tokens = 0; tokens < 1400; ++tokens) {
          if (tokens == next) {
            last = next;
            next = boundaries.after(next);
          }
          ASSERT_EQ(boundaries.last(tokens), last) << window << ", " << stride << ", " << prompt << " at " << tokens;
          ASSERT_EQ(boundaries.next(tokens), next);
        }
      }
    }
  }
}

TEST(Boundaries, AMomentSaysWhatWasCommitted) {
  const Boundaries boundaries{64, 512, 1300};
  const Moment before = boundaries.before(1024), after = boundaries.at(1024), later = boundaries.at(1295);
  EXPECT_EQ(std::tie(before.tokens, before.last, before.next, before.left, before.taken),
            std::make_tuple(1024, 512, 1024, 448, 448));
  EXPECT_EQ(std::tie(after.tokens, after.last, after.next, after.left, after.taken),
            std::make_tuple(1024, 1024, 1300, 960, 512));
  EXPECT_EQ(before.probes(8), 8);
  EXPECT_EQ(after.probes(8), 0);
  EXPECT_EQ(later.probes(8), 3);
  EXPECT_EQ(later.probes(0), 0);
  EXPECT_EQ(boundaries.at(1301).probes(64), 1);  // the boundary at 1,300 forgot those before it
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
