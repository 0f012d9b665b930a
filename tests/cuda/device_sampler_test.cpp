// The kernels must always sample the tokens that the host's Sampler draws from the same logits.
#include "kernels/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/sampling/sampler.h"
#include "tests/cuda/device_test.h"

namespace smartkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row of logits and everything else that its token depends on.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  TokenHistory history;
  std::vector<TokenId> forbidden;
  std::vector<uint32_t> allowed;
  TokenNoise noise;

  SamplingInput input() const { return {params, history, forbidden, allowed}; }
};

template <typename Draw>
std::string result_of(const Draw& draw) {
  try {
    return std::to_string(draw());
  } catch (const SamplingError& error) {
    return error.what();
  }
}

// Samples several rows in a call. Each must get the token that the host draws.
class DeviceSampleTest : public OrderTest {
 protected:
  std::vector<std::string> draw(const std::deque<Case>& cases) {
    std::deque<std::vector<float>> rows;
    std::deque<kernels::DeviceSample> draws;
    std::vector<kernels::DeviceSample*> pointers;
    for (const Case& one : cases) {
      rows.push_back(one.logits);
      draws.push_back(device_sample(one.input(), one.noise, static_cast<int64_t>(one.logits.size())));
      draws.back().logits = rows.back().data();
      pointers.push_back(&draws.back());
    }
    drawer_.start(pointers, nullptr);
    finish();
    drawer_.take(pointers);
    std::vector<std::string> results;
    for (const kernels::DeviceSample& one : draws) results.push_back(result_of([&] { return drawn_token(one); }));
    return results;
  }
  void expect_the_hosts(const std::deque<Case>& cases) {
    const std::vector<std::string> found = draw(cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      ASSERT_EQ(found[i], result_of([&] { return sampler_.sample(one.logits, one.input(), one.noise); }))
          << "row " << i << ", vocabulary " << one.logits.size() << ", temperature " << one.params.temperature
          << ", top_k " << one.params.top_k << ", top_p " << one.params.top_p << ", min_p " << one.params.min_p;
    }
  }

  Sampler sampler_;
  kernels::cuda::DeviceSamples drawer_;
};

class Cases {
 public:
  explicit Cases(uint32_t seed) : random_(seed) {}

  Case next(int64_t vocabulary) {
    Case one;
    one.noise = TokenNoise(random_(), 1, random_() % 1000);
    one.logits = logits(vocabulary);
    SamplingParams& params = one.params;
    params.temperature = pick({0.0f, 0.3f, 0.8f, 1.0f, 1.0f, 2.0f, 60.0f});
    params.top_p = pick({1.0f, 1.0f, 0.95f, 0.5f, 0.01f, 0.99999f, std::nextafter(1.0f, 0.0f)});
    params.top_k = pick({0, 0, 1, 7, 50, 1000});
    params.min_p = pick({0.0f, 0.0f, 0.0f, 0.05f, 1.0f});
    const auto token = [&] { return static_cast<TokenId>(random_() % static_cast<uint64_t>(vocabulary)); };
    if (chance(3)) {
      params.repetition_penalty = pick({1.0f, 1.3f, 0.7f});
      params.presence_penalty = pick({0.0f, 0.5f, -1.5f});
      params.frequency_penalty = pick({0.0f, 0.25f, -0.5f});
      one.history = TokenHistory(std::vector<TokenId>{token(), token(), token()});
      for (int i = 0; i < 200; ++i) one.history.add_output(token());
    }
    if (chance(3)) {
      // Some tokens occur twice.
      for (int i = 0; i < 150; ++i) params.logit_bias.emplace_back(token(), pick({-3.0f, 0.7f, 4.0f}));
      std::stable_sort(params.logit_bias.begin(), params.logit_bias.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    if (chance(3)) one.forbidden = {token(), token()};
    if (chance(3)) one.allowed = allowed(vocabulary);
    return one;
  }

 private:
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }
  bool chance(uint32_t n) { return random_() % n == 0; }

  std::vector<float> logits(int64_t vocabulary) {
    const float spread = pick({0.0f, 1.0f, 4.0f, 20.0f});
    std::normal_distribution<float> normal(pick({-5.0f, 0.0f, 12.0f}), std::max(spread, 1e-6f));
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    const bool ties = chance(3);
    for (float& logit : logits) {
      logit = normal(random_);
      if (ties) logit = std::round(logit * 2) / 2;
    }
    if (chance(4)) {
      for (float& logit : logits) logit = chance(2) ? logit : -kInfinity;
    }
    return logits;
  }
  std::vector<uint32_t> allowed(int64_t vocabulary) {
    std::vector<uint32_t> words(static_cast<size_t>((vocabulary + 31) / 32));
    const bool few = chance(2);
    for (int64_t token = 0; token < vocabulary; ++token) {
      if (chance(few ? 40 : 2)) words[static_cast<size_t>(token / 32)] |= 1u << token % 32;
    }
    return words;
  }

  std::mt19937 random_;
};

TEST_P(DeviceSampleTest, AreTheHostsUnderAnyParameters) {
  Cases random(7);
  for (const auto& [vocabulary, n] : {std::pair<int64_t, int>{1, 12},
                                      {2, 12},
                                      {63, 24},
                                      {64, 24},
                                      {65, 24},
                                      {130, 40},
                                      {1001, 60},
                                      {4099, 24},
                                      {49152, 4}}) {
    std::deque<Case> cases;
    for (int i = 0; i < n; ++i) cases.push_back(random.next(vocabulary));
    expect_the_hosts(cases);
  }
}

// Rows of a call may differ in their vocabularies, and nothing that a call leaves behind may show in the next.
TEST_P(DeviceSampleTest, RowsOfACallAreIndependent) {
  Cases random(8);
  std::deque<Case> cases;
  for (const int64_t vocabulary : {3000, 1, 64, 777, 2049}) cases.push_back(random.next(vocabulary));
  const std::vector<std::string> together = draw(cases);
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(draw({cases[i]})[0], together[i]);
}

TEST_P(DeviceSampleTest, TiesGoToTheLowerToken) {
  Case flat;
  flat.logits.assign(300, 1.0f);
  flat.params.temperature = 0;
  EXPECT_EQ(draw({flat})[0], "0");
  flat.logits[255] = flat.logits[130] = 5;
  EXPECT_EQ(draw({flat})[0], "130");
  // Over many positions, all of the three tokens that top_k or top_p leave are drawn, and no other.
  for (const bool by_top_k : {true, false}) {
    std::deque<Case> cases;
    for (uint64_t position = 0; position < 40; ++position) {
      Case one;
      one.logits.assign(300, 1.0f);
      for (size_t i = 0; i < 70; ++i) one.logits[i] = -1;
      one.params.top_k = by_top_k ? 3 : 0;
      one.params.top_p = by_top_k ? 1.0f : 2.5f / (230 + 70 * std::exp(-2.0f));
      one.noise = TokenNoise(1, 0, position);
      cases.push_back(one);
    }
    expect_the_hosts(cases);
    std::vector<std::string> found = draw(cases);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    EXPECT_EQ(found, (std::vector<std::string>{"70", "71", "72"}));
  }
}

TEST_P(DeviceSampleTest, WhatCannotBeDrawnFromIsNamedAsOnTheHost) {
  Case good;
  good.logits.assign(200, 0.5f);
  std::deque<Case> cases(6, good);
  cases[0].logits[137] = std::nanf("");
  cases[1].logits[70] = kInfinity;
  cases[1].logits[141] = std::nanf("");
  cases[2].logits.assign(200, -kInfinity);
  cases[3].logits.assign(200, -kInfinity);
  cases[3].logits[199] = -40;  // the only token left
  cases[4].logits[9] = std::nanf("");
  cases[4].forbidden = {9};  // so its NaN does not matter
  cases[5].allowed.assign(7, 0);
  cases[5].params.temperature = 0;
  expect_the_hosts(cases);
  const std::vector<std::string> found = draw(cases);
  EXPECT_EQ(found[0], "logits: expected finite values, found NaN for token 137");
  EXPECT_EQ(found[1], "logits: expected finite values, found +inf for token 70");
  EXPECT_EQ(found[2], "logits: every token is masked (-inf)");
  EXPECT_EQ(found[3], "199");
  EXPECT_EQ(found[5], "logits: every token is masked (-inf)");
}

TEST(DeviceSample, AVocabularyThatIsTooLargeIsRefused) {
  kernels::DeviceSample draw;
  draw.vocabulary = kernels::DeviceSampler::kMostTokens + 1;
  kernels::DeviceSample* const draws[] = {&draw};
  kernels::cuda::DeviceSamples device_sampler;
  try {
    device_sampler.start(draws, nullptr);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "drawing tokens: expected a vocabulary of 1 to 1048575 tokens, found 1048576");
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceSampleTest, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv
