// Speculative sampling has the target's distribution: chi-square over 20,000 draws.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampling/random.h"
#include "engine/speculation/verify.h"

namespace smartkv {
namespace {

constexpr int64_t kVocabulary = 200;
constexpr uint64_t kDraws = 20'000;

struct Case {
  const char* name;
  SamplingParams params;
  float distance;  // between the target's and the drafter's logits
};

std::vector<float> logits_of(uint64_t seed, float scale) {
  std::vector<float> logits;
  for (uint64_t i = 0; i < kVocabulary; ++i) logits.push_back(scale * static_cast<float>(uniform(seed, 0, i)));
  return logits;
}

// Tokens expected fewer than 5 times are counted together.
double chi_square(const Distribution& expected, const std::vector<int64_t>& counts, int64_t* degrees) {
  double sum = 0, rest_expected = 0, rest = 0;
  *degrees = -1;
  const auto add = [&](double found, double wanted) {
    sum += (found - wanted) * (found - wanted) / wanted;
    ++*degrees;
  };
  for (TokenId token = 0; token < kVocabulary; ++token) {
    const double wanted = expected.probability(token) * static_cast<double>(kDraws);
    const auto found = static_cast<double>(counts[static_cast<size_t>(token)]);
    EXPECT_TRUE(wanted > 0 || found == 0) << "token " << token << " is impossible";
    if (wanted >= 5) {
      add(found, wanted);
    } else {
      rest_expected += wanted;
      rest += found;
    }
  }
  if (rest_expected > 0) add(rest, rest_expected);
  return sum;
}

class Verify : public ::testing::TestWithParam<Case> {
 protected:
  Verify() : history(std::vector<TokenId>{3, 5, 8, 13}) {
    target_logits = logits_of(1, 6);
    draft_logits = logits_of(2, GetParam().distance);
    for (size_t i = 0; i < target_logits.size(); ++i) draft_logits[i] += target_logits[i];
    target = target_sampler.distribution(target_logits, {GetParam().params, history});
    drafter = draft_sampler.distribution(draft_logits, {GetParam().params, history});
  }
  void expect_target(const std::vector<int64_t>& counts) const {
    int64_t degrees = 0;
    const double sum = chi_square(target, counts, &degrees);
    const auto df = static_cast<double>(degrees);
    EXPECT_LT(sum, df + 4 * std::sqrt(2 * df) + 4) << degrees << " degrees of freedom";
  }

  TokenHistory history;
  std::vector<float> target_logits, draft_logits;
  Sampler target_sampler, draft_sampler;
  Distribution target, drafter;
};

TEST_P(Verify, DrawnDraftsLeaveTheTargetsDistribution) {
  std::vector<int64_t> counts(kVocabulary);
  int64_t accepted = 0;
  double overlap = 0;
  for (TokenId token = 0; token < kVocabulary; ++token) {
    overlap += std::min(target.probability(token), drafter.probability(token));
  }
  for (uint64_t i = 0; i < kDraws; ++i) {
    const TokenId draft = drafter.draw(uniform(7, 0, i, RandomStream::kDraft));
    const Verdict verdict = verify_drawn(target, drafter, draft, uniform(7, 0, i, RandomStream::kAccept),
                                         uniform(7, 0, i, RandomStream::kResidual));
    EXPECT_TRUE(!verdict.accepted || verdict.token == draft);
    ++counts[static_cast<size_t>(verdict.token)];
    accepted += verdict.accepted ? 1 : 0;
  }
  expect_target(counts);
  EXPECT_NEAR(static_cast<double>(accepted) / static_cast<double>(kDraws), overlap, 0.02);
}

TEST_P(Verify, FixedDraftsAreWhatPlainSamplingDraws) {
  std::vector<int64_t> counts(kVocabulary);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform(8, 0, i);
    const auto draft = static_cast<TokenId>(i % kVocabulary);
    const Verdict verdict = verify_fixed(target, draft, u);
    EXPECT_EQ(verdict.token, target.draw(u));
    EXPECT_EQ(verdict.accepted, verdict.token == draft);
    ++counts[static_cast<size_t>(verdict.token)];
  }
  expect_target(counts);
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, Verify,
    ::testing::Values(Case{"plain", {}, 3}, Case{"far", {}, 12}, Case{"equal", {}, 0},
                      Case{"temperature", {.temperature = 0.7f}, 3}, Case{"top_p", {.top_p = 0.8f}, 3},
                      Case{"top_k", {.top_k = 20}, 4}, Case{"min_p", {.min_p = 0.1f}, 4},
                      Case{"penalties", {.repetition_penalty = 1.3f, .presence_penalty = 0.5f}, 3},
                      Case{"bias", {.top_p = 0.9f, .logit_bias = {{7, 3.0f}, {9, -4.0f}}}, 3},
                      Case{"disjoint", {.top_k = 3}, 40}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(VerifyGreedy, IsTheComparisonOfTwoTokens) {
  Sampler sampler;
  const std::vector<float> logits = logits_of(3, 6);
  const SamplingParams greedy{.temperature = 0};
  const Distribution& target = sampler.distribution(logits, {greedy, {}});
  const TokenId best = target.tokens()[0];
  EXPECT_TRUE(verify_fixed(target, best, 0.999).accepted);
  const Verdict verdict = verify_fixed(target, best + 1, 0.001);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_EQ(verdict.token, best);
}

}  // namespace
}  // namespace smartkv
