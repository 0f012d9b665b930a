#include "engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "engine/sampling/logprobs.h"
#include "kernels/random.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TokenHistory kNoHistory;

std::vector<float> random_logits(int64_t n, uint64_t seed, double spread) {
  std::vector<float> logits(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    logits[static_cast<size_t>(i)] =
        static_cast<float>(spread * (uniform(seed, 0, static_cast<uint64_t>(i)) - 0.5) * 2);
  }
  return logits;
}

// Returns the probability of each token by the definitions: sorts everything, in double precision.
std::map<TokenId, double> reference(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::pair<double, TokenId>> entries;
  const double max = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    entries.emplace_back(std::exp((logits[i] - max) / params.temperature), static_cast<TokenId>(i));
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::erase_if(entries, [&](const auto& entry) { return entry.first < params.min_p; });
  if (params.top_k > 0 && entries.size() > static_cast<size_t>(params.top_k)) {
    entries.resize(static_cast<size_t>(params.top_k));
  }
  const auto sum = [&] {
    return std::accumulate(entries.begin(), entries.end(), 0.0, [](double s, const auto& e) { return s + e.first; });
  };
  const double total = sum();
  double mass = 0;
  size_t kept = 0;
  while (kept < entries.size() && (kept == 0 || mass < params.top_p * total)) mass += entries[kept++].first;
  if (params.top_p < 1) entries.resize(kept);
  const double kept_total = sum();
  std::map<TokenId, double> result;
  for (const auto& [weight, token] : entries) result[token] = weight / kept_total;
  return result;
}

struct SamplerCase {
  const char* name;
  SamplingParams params;
};

class SamplerDistribution : public ::testing::TestWithParam<SamplerCase> {};

TEST_P(SamplerDistribution, EqualsTheDefinition) {
  Sampler sampler;
  for (const int64_t vocab : {1, 63, 64, 65, 1000, 5000}) {
    const std::vector<float> logits = random_logits(vocab, static_cast<uint64_t>(vocab), 6);
    const auto expected = reference(logits, GetParam().params);
    const Distribution& actual = sampler.distribution(logits, {GetParam().params, kNoHistory});
    double total = 0;
    for (TokenId token = 0; token < vocab; ++token) {
      const auto at = expected.find(token);
      const double probability = actual.probability(token);
      ASSERT_NEAR(probability, at == expected.end() ? 0 : at->second, 1e-6) << "vocab " << vocab << " token " << token;
      ASSERT_EQ(probability > 0, at != expected.end()) << "vocab " << vocab << " token " << token;
      total += probability;
    }
    EXPECT_NEAR(total, 1, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SamplerDistribution,
    ::testing::Values(SamplerCase{"plain", {}}, SamplerCase{"cold", {.temperature = 0.5f}},
                      SamplerCase{"hot", {.temperature = 3.0f}}, SamplerCase{"top_k", {.top_k = 7}},
                      SamplerCase{"top_k_beyond_blocks", {.top_k = 100}}, SamplerCase{"top_p", {.top_p = 0.9f}},
                      SamplerCase{"narrow_top_p", {.top_p = 0.01f}}, SamplerCase{"zero_top_p", {.top_p = 0}},
                      SamplerCase{"flat_top_p", {.temperature = 50.0f, .top_p = 0.5f}},
                      SamplerCase{"min_p", {.min_p = 0.1f}}, SamplerCase{"min_p_one", {.min_p = 1.0f}},
                      SamplerCase{"together", {.temperature = 1.5f, .top_p = 0.8f, .top_k = 40, .min_p = 0.02f}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Sampler, DrawsFollowTheDistribution) {
  // Pearson's chi-square with 19 degrees of freedom is above 43.8 with probability 0.001. The seeds are fixed.
  const std::vector<float> logits = random_logits(20, 3, 1.5);
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 0.7f, .top_p = 0.95f}}) {
    Sampler sampler;
    const Distribution& distribution = sampler.distribution(logits, {params, kNoHistory});
    constexpr int kDraws = 50'000;
    std::vector<int> counts(20, 0);
    for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(distribution.draw(TokenNoise(42, 0, i)))];
    double chi_square = 0;
    for (TokenId token = 0; token < 20; ++token) {
      const double expected = kDraws * distribution.probability(token);
      const int found = counts[static_cast<size_t>(token)];
      if (expected == 0) {
        EXPECT_EQ(found, 0);
      } else {
        chi_square += (found - expected) * (found - expected) / expected;
      }
    }
    EXPECT_LT(chi_square, 43.8);
  }
}

// A race that is cut short must have the same winner as one that is run whole.
TEST_P(SamplerDistribution, TheFirstOfAllTokensIsDrawn) {
  Sampler sampler;
  for (const int64_t vocab : {1, 63, 64, 65, 1000}) {
    for (const double spread : {0.0, 2.0, 15.0}) {
      std::vector<float> logits = random_logits(vocab, static_cast<uint64_t>(vocab), spread);
      for (size_t i = 0; i + 1 < logits.size(); i += 3) logits[i] = -std::numeric_limits<float>::infinity();
      const SamplingInput input{GetParam().params, kNoHistory};
      const Distribution distribution = sampler.distribution(logits, input);
      for (uint64_t position = 0; position < 40; ++position) {
        const TokenNoise noise(9, 2, position);
        TokenId first = -1;
        double least = std::numeric_limits<double>::infinity();
        for (size_t i = 0; i < distribution.weights().size(); ++i) {
          const TokenId token = distribution.tokens().empty() ? static_cast<TokenId>(i) : distribution.tokens()[i];
          if (distribution.weights()[i] <= 0) continue;
          const double arrival = noise.of(token, noise.block(token / 64)) / distribution.weights()[i];
          if (arrival >= least) continue;
          least = arrival;
          first = token;
        }
        ASSERT_EQ(sampler.sample(logits, input, noise), first) << "vocab " << vocab << " spread " << spread;
        ASSERT_EQ(distribution.draw(noise), first) << "vocab " << vocab << " spread " << spread;
      }
    }
  }
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  Sampler sampler;
  std::vector<float> logits(1000, -std::numeric_limits<float>::infinity());
  logits[100] = logits[700] = 1;
  const SamplingParams params;
  std::map<TokenId, int> counts;
  for (uint64_t i = 0; i < 1000; ++i) ++counts[sampler.sample(logits, {params, kNoHistory}, TokenNoise(1, 0, i))];
  EXPECT_EQ(counts[100] + counts[700], 1000);
  EXPECT_NEAR(counts[100], 500, 60);
}

TEST(Sampler, GreedyTakesTheLowestOfEqualTokens) {
  Sampler sampler;
  std::vector<float> logits = random_logits(500, 1, 1);
  logits[333] = logits[130] = logits[131] = 5;
  const SamplingParams params{.temperature = 0};
  const Distribution& distribution = sampler.distribution(logits, {params, kNoHistory});
  EXPECT_THAT(distribution.tokens(), ElementsAre(130));
  EXPECT_EQ(distribution.probability(130), 1);
  EXPECT_EQ(distribution.draw(TokenNoise(1, 0, 0)), 130);
}

TEST(Sampler, TopKIsExactAmongEqualTokens) {
  Sampler sampler;
  const std::vector<float> logits(300, 1.0f);
  const SamplingParams params{.top_k = 3};
  EXPECT_THAT(sampler.distribution(logits, {params, kNoHistory}).tokens(), ElementsAre(0, 1, 2));
}

// Returns the logit that an edit leads to: the log of the odds against an unedited token, in a two-token distribution.
double edited_logit(float logit, const SamplingParams& params, const TokenHistory& history) {
  Sampler sampler;
  const std::vector<float> logits = {logit, 0.0f};
  const Distribution& distribution = sampler.distribution(logits, {params, history});
  return std::log(distribution.probability(0) / distribution.probability(1));
}

TEST(Sampler, PenaltiesAndBiasHaveTheirDocumentedSize) {
  const std::vector<TokenId> prompt = {0};
  const TokenHistory in_prompt(prompt);
  TokenHistory three_times;
  for (int i = 0; i < 3; ++i) three_times.add_output(0);

  EXPECT_NEAR(edited_logit(2, {.repetition_penalty = 1.25f}, in_prompt), 1.6, 1e-5);
  EXPECT_NEAR(edited_logit(-2, {.repetition_penalty = 1.25f}, in_prompt), -2.5, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.repetition_penalty = 1.25f}, three_times), 1.6, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.repetition_penalty = 1.25f}, kNoHistory), 2, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.presence_penalty = 0.5f}, three_times), 1.5, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.presence_penalty = 0.5f}, in_prompt), 2, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.frequency_penalty = 0.5f}, three_times), 0.5, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.frequency_penalty = -0.5f}, three_times), 3.5, 1e-5);
  EXPECT_NEAR(edited_logit(2, {.logit_bias = {{0, -1.5f}}}, kNoHistory), 0.5, 1e-5);
  // The order is bias, repetition, frequency and presence, temperature.
  EXPECT_NEAR(edited_logit(2,
                           {.temperature = 0.5f,
                            .repetition_penalty = 2,
                            .presence_penalty = 0.25f,
                            .frequency_penalty = 0.5f,
                            .logit_bias = {{0, 2.0f}}},
                           three_times),
              (4.0 / 2 - 1.5 - 0.25) / 0.5, 1e-5);
}

TEST(Sampler, PenaltiesOfAnySizeLeaveLogitsFinite) {
  TokenHistory history;
  for (const TokenId token : {0, 1, 1, 2}) history.add_output(token);
  const std::vector<float> logits = {3e38f, 20, -20, 0};
  for (const float repetition : {1e-45f, 1e-38f, 1e-3f, 10.0f}) {
    for (const float other : {-2.0f, 0.0f, 2.0f}) {
      for (const float temperature : {0.0f, 1e-5f, 1.0f, 2.0f}) {
        const SamplingParams params{.temperature = temperature,
                                    .min_p = 0.1f,
                                    .repetition_penalty = repetition,
                                    .presence_penalty = other,
                                    .frequency_penalty = other};
        EXPECT_EQ(Sampler().sample(logits, {params, history}, {1, 0, 0}), 0)
            << repetition << ' ' << other << ' ' << temperature;
      }
    }
  }
}

TEST(Sampler, ForbiddenTokensAreNeverDrawnAndLogitsAreLeftAlone) {
  Sampler sampler;
  const std::vector<float> logits = {9, 1, 2};
  const std::vector<TokenId> forbidden = {0};
  const SamplingParams params{.temperature = 0};
  EXPECT_EQ(sampler.distribution(logits, {params, kNoHistory, forbidden}).draw(TokenNoise(1, 0, 0)), 2);
  EXPECT_THAT(logits, ElementsAre(9, 1, 2));
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  Sampler sampler;
  std::vector<float> logits = random_logits(200, 1, 1);
  const auto message = [&] {
    try {
      const SamplingParams params;
      sampler.distribution(logits, {params, kNoHistory});
    } catch (const SamplingError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  logits[137] = std::nanf("");
  EXPECT_THAT(message(), HasSubstr("NaN for token 137"));
  logits[137] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(message(), HasSubstr("+inf for token 137"));
  std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
  EXPECT_THAT(message(), HasSubstr("every token is masked"));
}

TEST(RowScan, ExponentialIsAccurateAndUnderflowsToZero) {
  std::vector<float> x, out(4000);
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(-i) / 45.0f);
  exp_row(x, 0, 1, out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(out[i], expected, x[i] < -87.0f ? 0x1p-125 : 3e-7 * expected) << x[i];
  }
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[3999], 0.0f);
}

TEST(Logprobs, AreTheLogSoftmaxWithTheMostLikelyFirst) {
  const std::vector<float> logits = random_logits(3000, 11, 5);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  LogprobRow row;
  row.assign(logits);
  for (const int32_t k : {0, 1, 5, 20, 60}) {
    const TokenLogprob result = row.of(17, k);
    EXPECT_NEAR(result.logprob, logits[17] - std::log(total), 1e-5);
    ASSERT_EQ(result.top.size(), static_cast<size_t>(k));
    for (size_t i = 0; i < result.top.size(); ++i) {
      EXPECT_EQ(result.top[i].first, order[i]);
      EXPECT_NEAR(result.top[i].second, logits[static_cast<size_t>(order[i])] - std::log(total), 1e-5);
    }
  }
}

TEST(Random, CountersAreIndependent) {
  EXPECT_EQ(uniform(1, 2, 3), uniform(1, 2, 3));
  double correlation = 0, mean = 0;
  constexpr int kN = 20'000;
  for (int i = 0; i < kN; ++i) {
    const double x = uniform(5, 0, i);
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    mean += x / kN;
    correlation += (x - 0.5) * (uniform(5, 1, i) - 0.5) / kN;
  }
  EXPECT_NEAR(mean, 0.5, 0.01);
  EXPECT_NEAR(correlation, 0, 0.005);
}

}  // namespace
}  // namespace smartkv
