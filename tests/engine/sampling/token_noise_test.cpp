// Tokens drawn with noise have the right distribution (chi-square over 20,000 draws). Two distributions with the same
// noise draw the same token as often as the coupling promises.
#include "kernels/token_noise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampling/sampler.h"

namespace smartkv {
namespace {

constexpr int64_t kVocabulary = 200;
constexpr uint64_t kNoiseDraws = 20'000;

TEST(Exponential, IsTheLogarithmToAFewUlp) {
  for (uint64_t i = 0; i < 200'000; ++i) {
    // Every magnitude of u, and of 1 - u.
    const uint64_t random = detail::mix64(i) >> (i % 53), bits = i % 2 == 0 ? random : ~random;
    const double expected = -std::log(static_cast<double>((bits >> 11) + 1) * 0x1.0p-53);
    ASSERT_NEAR(exponential(bits), expected, 4 * 0x1.0p-52 * expected) << bits;
  }
  EXPECT_EQ(exponential(~uint64_t{0}), 0);
  EXPECT_NEAR(exponential(0), 53 * std::log(2.0), 1e-13);
}

TEST(TokenNoise, OfABlockTheLeastIsTheLeast) {
  for (uint64_t position = 0; position < 50; ++position) {
    const TokenNoise noise(7, 1, position);
    for (int64_t index = 0; index < 20; ++index) {
      const TokenNoise::Block block = noise.block(index);
      EXPECT_EQ(block.token / TokenNoise::kBlockTokens, index);
      for (int64_t i = 0; i < TokenNoise::kBlockTokens; ++i) {
        const auto token = static_cast<TokenId>(index * TokenNoise::kBlockTokens + i);
        EXPECT_GE(noise.of(token, block), block.least);
        EXPECT_EQ(noise.of(token, block) == block.least, token == block.token);
      }
    }
  }
}

// By the probability integral transform, exp(-noise) is uniform. Chi-square with 15 degrees of freedom is above 37.7
// with probability 0.001. The seeds are fixed.
TEST(TokenNoise, TokensHaveIndependentExponentialNumbers) {
  constexpr int kPositions = 32'000, kBins = 16;
  for (const auto& [first, second] : {std::pair<TokenId, TokenId>{0, 1}, {5, 63}, {63, 64}, {17, 49'000}}) {
    std::vector<int> counts(kBins);
    double correlation = 0, next = 0, before = 0;
    for (uint64_t position = 0; position < kPositions; ++position) {
      const TokenNoise noise(11, 0, position);
      const double x = noise.of(first, noise.block(first / 64)), y = noise.of(second, noise.block(second / 64));
      ++counts[static_cast<size_t>(kBins * std::exp(-x) * (1 - 1e-12))];
      correlation += (x - 1) * (y - 1) / kPositions;
      next += (x - 1) * (before - 1) / kPositions;
      before = x;
    }
    double sum = 0;
    for (const int count : counts) sum += (count - kPositions / kBins) * (count - kPositions / kBins);
    EXPECT_LT(sum / (kPositions / kBins), 37.7) << first;
    EXPECT_NEAR(correlation, 0, 0.025) << first << ", " << second;
    EXPECT_NEAR(next, 0, 0.025) << first;
  }
}

struct CouplingCase {
  const char* name;
  SamplingParams params;
  float distance;  // between the logits of the target and of the drafter
};

std::vector<float> logits_of(uint64_t seed, float scale) {
  std::vector<float> logits;
  for (uint64_t i = 0; i < kVocabulary; ++i) logits.push_back(scale * static_cast<float>(uniform(seed, 0, i)));
  return logits;
}

// Computes chi-square. Counts tokens that are expected fewer than 5 times together.
double chi_square(const Distribution& expected, const std::vector<int64_t>& counts, int64_t* degrees) {
  double sum = 0, rest_expected = 0, rest = 0;
  *degrees = -1;
  const auto add = [&](double found, double wanted) {
    sum += (found - wanted) * (found - wanted) / wanted;
    ++*degrees;
  };
  for (TokenId token = 0; token < kVocabulary; ++token) {
    const double wanted = expected.probability(token) * static_cast<double>(kNoiseDraws);
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

class Coupling : public ::testing::TestWithParam<CouplingCase> {
 protected:
  Coupling() : history(std::vector<TokenId>{3, 5, 8, 13}), input{GetParam().params, history} {
    target_logits = logits_of(1, 6);
    draft_logits = logits_of(2, GetParam().distance);
    for (size_t i = 0; i < target_logits.size(); ++i) draft_logits[i] += target_logits[i];
    target = sampler.distribution(target_logits, input);
    drafter = sampler.distribution(draft_logits, input);
  }

  TokenHistory history;
  SamplingInput input;
  std::vector<float> target_logits, draft_logits;
  Sampler sampler;
  Distribution target, drafter;
};

TEST_P(Coupling, DrawsHaveTheTargetsDistribution) {
  std::vector<int64_t> counts(kVocabulary);
  for (uint64_t i = 0; i < kNoiseDraws; ++i) {
    ++counts[static_cast<size_t>(sampler.sample(target_logits, input, TokenNoise(7, 0, i)))];
  }
  int64_t degrees = 0;
  const double sum = chi_square(target, counts, &degrees);
  const auto df = static_cast<double>(degrees);
  EXPECT_LT(sum, df + 4 * std::sqrt(2 * df) + 4) << degrees << " degrees of freedom";
}

TEST_P(Coupling, ADraftIsTheTargetsTokenAsOftenAsPromised) {
  double promised = 0, overlap = 0;
  for (TokenId i = 0; i < kVocabulary; ++i) {
    const double p = target.probability(i), q = drafter.probability(i);
    overlap += std::min(p, q);
    if (p == 0 || q == 0) continue;
    double sum = 0;
    for (TokenId j = 0; j < kVocabulary; ++j) {
      sum += std::max(target.probability(j) / p, drafter.probability(j) / q);
    }
    promised += 1 / sum;
  }
  int64_t same = 0;
  for (uint64_t i = 0; i < kNoiseDraws; ++i) {
    const TokenNoise noise(7, 0, i);
    same += sampler.sample(target_logits, input, noise) == sampler.sample(draft_logits, input, noise) ? 1 : 0;
  }
  const double rate = static_cast<double>(same) / static_cast<double>(kNoiseDraws);
  EXPECT_NEAR(rate, promised, 0.015);
  EXPECT_LE(rate, overlap + 0.015);                  // the acceptance of rejection sampling, which no method exceeds
  EXPECT_GE(rate, overlap / (2 - overlap) - 0.015);  // (1 - distance) / (1 + distance)
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, Coupling,
    ::testing::Values(CouplingCase{"plain", {}, 3}, CouplingCase{"far", {}, 12}, CouplingCase{"equal", {}, 0},
                      CouplingCase{"temperature", {.temperature = 0.7f}, 3}, CouplingCase{"top_p", {.top_p = 0.8f}, 3},
                      CouplingCase{"top_k", {.top_k = 20}, 4}, CouplingCase{"min_p", {.min_p = 0.1f}, 4},
                      CouplingCase{"penalties", {.repetition_penalty = 1.3f, .presence_penalty = 0.5f}, 3},
                      CouplingCase{"bias", {.top_p = 0.9f, .logit_bias = {{7, 3.0f}, {9, -4.0f}}}, 3},
                      CouplingCase{"disjoint", {.top_k = 3}, 40}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace smartkv
