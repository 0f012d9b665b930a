// Look-up drafts, the acceptance estimate and the choice of how much to draft.
#include <gmock/gmock.h>

#include "engine/speculation/adaptive.h"
#include "engine/speculation/ngram_index.h"
#include "kernels/random.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;

NgramIndex index_of(std::initializer_list<TokenId> tokens, int64_t min_match = 1, int64_t max_match = 4) {
  NgramIndex index(min_match, max_match);
  index.append(std::vector<TokenId>(tokens));
  return index;
}

TEST(NgramIndex, TheLongestMatchWins) {
  std::vector<TokenId> draft;
  EXPECT_EQ(index_of({1, 2, 3, 7, 9, 3, 8, 1, 2, 3}).lookup(3, &draft), 3);
  EXPECT_THAT(draft, ElementsAre(7, 9, 3));
}

TEST(NgramIndex, OfEqualLengthTheMostRecentWins) {
  std::vector<TokenId> draft;
  EXPECT_EQ(index_of({5, 1, 2, 7, 6, 1, 2, 8, 4, 1, 2}).lookup(2, &draft), 2);
  EXPECT_THAT(draft, ElementsAre(8, 4));
}

TEST(NgramIndex, CountsAgreementBeyondItsTables) {
  std::vector<TokenId> draft;
  EXPECT_EQ(index_of({1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6}, 2, 3).lookup(1, &draft), 6);
  EXPECT_THAT(draft, ElementsAre(9));
}

TEST(NgramIndex, APeriodGoesOn) {
  std::vector<TokenId> draft;
  EXPECT_EQ(index_of({9, 1, 2, 1, 2}).lookup(5, &draft), 2);
  EXPECT_THAT(draft, ElementsAre(1, 2, 1, 2, 1));
}

// Compared with the definition, for a prompt that is indexed in pieces and tokens that come one by one.
TEST(NgramIndex, FindsTheSameHoweverItWasFilled) {
  constexpr int64_t kMin = 2, kMax = 4;
  std::vector<TokenId> tokens;
  for (uint64_t i = 0; i < 3000; ++i) tokens.push_back(static_cast<TokenId>(detail::mix64(i) % 9));
  NgramIndex pieces(kMin, kMax), whole(kMin, kMax);
  pieces.append(std::span(tokens).first(2000));
  for (const int64_t n : {1, 2, 700, 1500, 1400}) pieces.index(n);
  whole.append(std::span(tokens).first(2000));
  std::vector<TokenId> draft, other;
  for (size_t end = 2000; end < tokens.size(); ++end) {
    const int64_t agreed = pieces.lookup(3, &draft);
    ASSERT_EQ(whole.lookup(3, &other), agreed);
    ASSERT_EQ(draft, other);
    int64_t longest = 0;
    size_t follower = 0;
    for (size_t at = 1; at < end; ++at) {
      int64_t length = 0;
      while (length < kMax && static_cast<size_t>(length) < at &&
             tokens[at - 1 - static_cast<size_t>(length)] == tokens[end - 1 - static_cast<size_t>(length)]) {
        ++length;
      }
      if (length < kMin || length < longest) continue;
      longest = length;
      follower = at;
    }
    ASSERT_EQ(std::min(agreed, kMax), longest);
    ASSERT_TRUE(longest == 0 || draft[0] == tokens[follower]);
    pieces.append({&tokens[end], 1});
    whole.append({&tokens[end], 1});
  }
}

TEST(NgramIndex, NoMatchNoDraft) {
  std::vector<TokenId> draft{1};
  EXPECT_EQ(index_of({1, 2, 3}).lookup(5, &draft), 0);
  EXPECT_TRUE(draft.empty());
  EXPECT_EQ(index_of({1, 2, 3, 4, 3}, 2).lookup(5, &draft), 0);  // one token agrees, two are required
  EXPECT_EQ(index_of({}).lookup(5, &draft), 0);
  EXPECT_EQ(index_of({1, 1, 1, 1}, 1, 0).lookup(5, &draft), 0);  // only stores tokens
}

TEST(AcceptanceEstimate, FollowsTheRounds) {
  AcceptanceEstimate estimate(0.5, {1.5, 10, 0.85});
  EXPECT_DOUBLE_EQ(estimate.rate(), 0.5);
  for (int i = 0; i < 20; ++i) estimate.round(4, 4);
  EXPECT_GT(estimate.rate(), 0.95);
  for (int i = 0; i < 6; ++i) estimate.round(4, 0);
  EXPECT_LT(estimate.rate(), 0.5);
}

TEST(AcceptanceEstimate, ProbesLessAndLessOftenUntilDraftingPays) {
  AcceptanceEstimate estimate(0.6, {1.5, 10, 0.85});
  const auto pause = [&] {
    int n = 1;
    while (!estimate.skip()) ++n;
    return n;
  };
  const int first = pause();
  estimate.round(2, 0);
  EXPECT_EQ(pause(), 2 * first);
  estimate.round(2, 2);
  EXPECT_EQ(pause(), 4 * first);
  estimate.round(2, 2);
  estimate.round(2, 1);  // not a probe
  EXPECT_EQ(pause(), first);
}

TEST(AcceptanceEstimate, ASlowOneOutlastsABadMinute) {
  AcceptanceEstimate fast(0.45, {1.5, 10, 0.85}), slow(0.45, {6, 30, 0.95});
  for (int i = 0; i < 10; ++i) {
    for (AcceptanceEstimate* estimate : {&fast, &slow}) estimate->round(1, 0);
  }
  EXPECT_LT(fast.rate(), 0.1);
  EXPECT_GT(slow.rate(), 0.1);
}

TEST(ConfidenceEstimate, StartsFromWhatTheModelThinks) {
  const ConfidenceEstimate estimate;
  EXPECT_LT(estimate.rate(0.1), 0.2);
  EXPECT_NEAR(estimate.rate(0.6), 0.6, 0.1);
  EXPECT_GT(estimate.rate(1), 0.95);
  EXPECT_DOUBLE_EQ(ConfidenceEstimate(0.9).rate(0.1), 0.9);
}

TEST(ConfidenceEstimate, LearnsWhatStandsAtEachProbability) {
  ConfidenceEstimate estimate;
  const std::vector<double> probabilities = {0.9, 0.1, 0.6};
  // The second is never accepted, so the third is never tried.
  for (int i = 0; i < 60; ++i) estimate.round(probabilities, 1);
  EXPECT_GT(estimate.rate(0.9), 0.95);
  EXPECT_LT(estimate.rate(0.1), 0.02);
  EXPECT_NEAR(estimate.rate(0.6), 0.6, 0.1);
}

// Observes passes of `sequences` that cost `ms` plus `per_row` for each additional row.
void measure(PassCost* cost, int64_t sequences, double ms, double per_row) {
  for (int i = 0; i < 60; ++i) {
    for (int64_t extra = 0; extra <= 40; ++extra) {
      cost->observe(sequences, extra, ms + per_row * static_cast<double>(extra));
    }
  }
}

TEST(PassCost, LearnsLevelAndShape) {
  PassCost cost;
  EXPECT_FALSE(cost.measured());
  EXPECT_GT(cost.ms(1, 4), cost.ms(1, 0));
  measure(&cost, 1, 10, 0.5);
  EXPECT_TRUE(cost.measured());
  EXPECT_NEAR(cost.ms(1, 0), 10, 0.5);
  EXPECT_NEAR(cost.ms(1, 4), 12, 0.6);
  EXPECT_NEAR(cost.ms(1, 8), 14, 1);
}

TEST(PassCost, OneSlowPassDoesNotMakeAShapeDear) {
  PassCost cost;
  for (int i = 0; i < 10; ++i) cost.observe(1, 0, 10);
  cost.observe(1, 1, 40);
  EXPECT_LT(cost.ms(1, 1), 12);
  for (int i = 0; i < 10; ++i) cost.observe(1, 3, 10.5);
  EXPECT_LE(cost.ms(1, 1), cost.ms(1, 3));  // fewer rows cost no more
  EXPECT_LT(cost.ms(1, 3), 11);
}

TEST(StepCost, IsAShareOfAPassUntilItIsMeasured) {
  PassCost target;
  for (int i = 0; i < 10; ++i) target.observe(1, 0, 10);
  StepCost step;
  step.share = 0.3;
  EXPECT_NEAR(step.first_ms(1, target), 3, 0.01);
  EXPECT_NEAR(step.next_ms(1, target), 3, 0.01);
  step.first.observe(1, 0, 50);  // the first pass is ignored once there is another
  EXPECT_NEAR(step.first_ms(1, target), 3, 0.01);
  step.first.observe(1, 0, 2);
  EXPECT_NEAR(step.first_ms(1, target), 2, 0.01);
  EXPECT_NEAR(step.next_ms(1, target), 2, 0.01);
  step.first.observe(8, 0, 90);
  EXPECT_NEAR(step.first_ms(8, target), 2, 0.01);
  step.first.observe(8, 0, 4);
  EXPECT_NEAR(step.first_ms(8, target), 4, 0.01);
  step.next.observe(1, 0, 1);
  step.next.observe(1, 0, 1);
  EXPECT_NEAR(step.first_ms(1, target), 2, 0.01);
  EXPECT_NEAR(step.next_ms(1, target), 1, 0.01);
}

struct Choice {
  std::vector<DraftOption> options;
  PassCost target;
  StepCost step;
  std::vector<int64_t> choose(int64_t sequences) {
    const StepCost* groups[] = {&step};
    choose_drafts(sequences, target, groups, &options);
    std::vector<int64_t> chosen;
    for (const DraftOption& option : options) chosen.push_back(option.chosen);
    return chosen;
  }
};

TEST(ChooseDrafts, CheapRowsAreTakenAsFarAsTheyAreLikely) {
  Choice choice;
  measure(&choice.target, 1, 10, 0.3);
  choice.options = {{.acceptance = 0.99, .cap = 10}};
  EXPECT_THAT(choice.choose(1), ElementsAre(10));
  choice.options[0].acceptance = 0.5;
  EXPECT_GE(choice.choose(1)[0], 2);
  EXPECT_LE(choice.choose(1)[0], 6);
}

TEST(ChooseDrafts, BelowBreakEvenIsPlain) {
  Choice choice;
  measure(&choice.target, 1, 10, 5);
  choice.options = {{.acceptance = 0.3, .cap = 10}};
  EXPECT_THAT(choice.choose(1), ElementsAre(0));
  choice.options[0].fixed = true;
  EXPECT_THAT(choice.choose(1), ElementsAre(10));
}

TEST(ChooseDrafts, ShrinksUnderLoad) {
  Choice choice;
  measure(&choice.target, 1, 10, 0.3);
  // Arithmetic takes the time here, not reading the weights.
  measure(&choice.target, 32, 40, 1.2);
  choice.options = {{.acceptance = 0.6, .cap = 8}};
  const int64_t alone = choice.choose(1)[0];
  choice.options.assign(32, {.acceptance = 0.6, .cap = 8});
  const std::vector<int64_t> busy = choice.choose(32);
  EXPECT_GE(alone, 3);
  for (const int64_t n : busy) EXPECT_LT(n, alone);
}

TEST(ChooseDrafts, AModelDraftsWhileItsStepsPay) {
  Choice choice;
  measure(&choice.target, 1, 10, 0.3);
  for (int i = 0; i < 50; ++i) choice.step.first.observe(1, 0, 1);
  choice.options = {{.acceptance = 0.8, .cap = 8, .group = 0}};
  EXPECT_GE(choice.choose(1)[0], 3);
  for (int i = 0; i < 200; ++i) choice.step.first.observe(1, 0, 9);
  EXPECT_THAT(choice.choose(1), ElementsAre(0));
}

TEST(ChooseDrafts, SaysWhatATokenMustBring) {
  Choice choice;
  measure(&choice.target, 1, 10, 0.5);
  const DraftPrice plain = choose_drafts(1, choice.target, {}, &choice.options);
  EXPECT_NEAR(plain.tokens_per_ms, 0.1, 0.01);
  EXPECT_NEAR(plain.row_ms, 0.5, 0.2);
  choice.options = {{.acceptance = 0.9, .cap = 4}};
  EXPECT_GT(choose_drafts(1, choice.target, {}, &choice.options).tokens_per_ms, 0.2);
}

}  // namespace
}  // namespace smartkv
