#include "cache/reuse_model.h"

#include <gtest/gtest.h>

namespace smartkv {
namespace {

// A conversation whose turns come every 8 ticks, after some of which two of its states are stored.
class ReuseModelTest : public ::testing::Test {
 protected:
  ReuseModelTest() {
    for (int turn = 0; turn < 20; ++turn) {
      Reuse last = model_.begin(turn_, 100);
      wait(8);
      turn_ = model_.use(&last);
    }
    shorter_ = model_.begin(turn_, 90);
    longest_ = model_.begin(turn_, 100);
    model_.set_inner(&shorter_);
  }
  void wait(int ticks) {
    for (int i = 0; i < ticks; ++i) model_.tick();
  }

  ReuseModel model_;
  std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  Reuse shorter_, longest_;
};

TEST_F(ReuseModelTest, TheLongestStateOfAConversationIsExpectedToBeUsed) {
  wait(7);
  EXPECT_GT(model_.rate(&longest_), 5 * model_.rate(&shorter_));
}

TEST_F(ReuseModelTest, OnlyTheLongestStateOfATurnThatGoesOnIsAwaited) {
  EXPECT_FALSE(ReuseModel::awaited(shorter_));
  EXPECT_TRUE(ReuseModel::awaited(longest_));
  wait(8);
  model_.use(&longest_);
  EXPECT_FALSE(ReuseModel::awaited(longest_));
}

TEST_F(ReuseModelTest, AnAwaitedStateKeepsItsRateUntilItsTurnGoesOn) {
  std::optional<Reuse> awaited = ReuseModel::awaited(longest_);
  wait(7);
  EXPECT_EQ(model_.rate(&*awaited), model_.rate(&longest_));
  EXPECT_TRUE(ReuseModel::is_awaited(*awaited));
  wait(1);
  model_.use(&longest_);
  EXPECT_FALSE(ReuseModel::is_awaited(*awaited));
}

TEST_F(ReuseModelTest, AgesOfAnAwaitedStateAreCountedOnce) {
  ReuseModel other = model_;
  Reuse same = longest_;
  std::optional<Reuse> awaited = ReuseModel::awaited(longest_);
  wait(30);
  for (int i = 0; i < 30; ++i) other.tick();
  model_.count(&*awaited);
  EXPECT_EQ(model_.rate(&longest_), other.rate(&same));
}

}  // namespace
}  // namespace smartkv
