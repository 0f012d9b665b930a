// The frontier of a model, promises that choose from it, and policies made by promise.
#include "cache/frontier.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/parameters.h"
#include "cache/policy.h"
#include "tests/cache/random_sensitivity.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

FrontierPoint point(double bits, double kl, double percent) {
  return {{{"policy", "calibrated"}, {"bits", bits}}, 100 * bits, kl, percent, 10 * std::sqrt(kl)};
}

Frontier some_frontier() {
  return {point(2.5, 0.01, 1), point(3.5, 0.002, 0.3), point(4.5, 0.0006, 0.2), {{{"policy", "full"}}, 1600, 0, 0, 0}};
}

TEST(Frontier, DropsWhatACheaperPointBeats) {
  const Frontier frontier =
      make_frontier({point(8, 0, 0), point(4, 0.003, 0), point(3, 0.01, 0), point(5, 0.004, 0), point(2, 0.01, 0)});
  std::vector<double> bytes;
  for (const FrontierPoint& kept : frontier) bytes.push_back(kept.bytes_per_token);
  EXPECT_THAT(bytes, testing::ElementsAre(200, 400, 800));
}

TEST(Frontier, IsReadAsItWasWritten) {
  const Frontier frontier = some_frontier(), read = read_frontier(frontier_json(frontier));
  ASSERT_EQ(read.size(), frontier.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].spec, frontier[i].spec);
    EXPECT_EQ(read[i].bytes_per_token, frontier[i].bytes_per_token);
    EXPECT_EQ(read[i].kl, frontier[i].kl);
    EXPECT_EQ(read[i].perplexity_percent, frontier[i].perplexity_percent);
    EXPECT_EQ(read[i].drift, frontier[i].drift);
  }
  json worse = frontier_json(frontier);
  worse[1]["kl"] = 0.02;
  EXPECT_THROW(read_frontier(worse), CacheError);
  worse[1].erase("kl");
  EXPECT_THROW(read_frontier(worse), json::exception);
}

TEST(Frontier, APromiseChoosesTheCheapestPointThatKeepsIt) {
  const Frontier frontier = some_frontier();
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0.5}), 0u);
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0.002}), 1u);
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0.0019}), 2u);
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0}), 3u);
  EXPECT_EQ(choose_point(frontier, {.max_perplexity_percent = 0.25}), 2u);
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0.002, .max_perplexity_percent = 0.25}), 2u);
  EXPECT_EQ(choose_point(frontier, {.max_kl = 0.01, .bytes_per_token = 400}), 0u);
}

TEST(Frontier, BytesAloneChooseTheBestPointThatTheyPayFor) {
  const Frontier frontier = some_frontier();
  EXPECT_EQ(choose_point(frontier, {.bytes_per_token = 449}), 1u);
  EXPECT_EQ(choose_point(frontier, {.bytes_per_token = 1e6}), 3u);
  EXPECT_THAT([&] { choose_point(frontier, {.bytes_per_token = 200}); },
              testing::ThrowsMessage<CacheError>(HasSubstr("kv_cache.bytes_per_token: expected at least 250")));
  EXPECT_THAT([&] { choose_point(frontier, {.max_kl = 0.001, .bytes_per_token = 400}); },
              testing::ThrowsMessage<CacheError>(HasSubstr("expected at least 450 for the quality asked for")));
}

TEST(Frontier, TheDriftThatAPromiseAllowsGrowsWithItsRoot) {
  const KeptPromise promise{point(3.5, 0.002, 0.3), 0.008};
  EXPECT_DOUBLE_EQ(promise.most_drift(), 2 * promise.point.drift);
}

class PromisedPolicy : public testing::Test {
 protected:
  PromisedPolicy() {
    Sensitivity known = *random_sensitivity(context_.shape);
    known.frontier = some_frontier();
    context_.load_sensitivity = [found = std::make_shared<const Sensitivity>(known)] { return found; };
    context_.rope = [](int64_t, float* cos, float* sin) {
      std::fill_n(cos, 32, 1.0f);
      std::fill_n(sin, 32, 0.0f);
    };
  }

  const CacheShape shape_{2, 3, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_)};
};

TEST_F(PromisedPolicy, IsAPointOfTheFrontier) {
  const auto policy = make_policy(context_, {{"max_kl", 0.003}});
  EXPECT_EQ(policy->spec(), json({{"policy", "calibrated"}, {"bits", 3.5}}));
  ASSERT_TRUE(policy->promise());
  EXPECT_EQ(policy->promise()->max_kl, 0.003);
  EXPECT_EQ(policy->promise()->point.kl, 0.002);
  EXPECT_EQ(make_policy(context_, {{"max_kl", 0}})->name(), "full");
}

TEST_F(PromisedPolicy, PresetsPromiseWhatTheirPointDoes) {
  const auto policy = make_policy(context_, "balanced");
  EXPECT_EQ(policy->spec(), json({{"policy", "calibrated"}, {"bits", 4.5}}));
  ASSERT_TRUE(policy->promise());
  EXPECT_EQ(policy->promise()->max_kl, 0.0006);
  EXPECT_FALSE(make_policy(context_, "quality")->promise());  // not on this frontier
}

// A client may send what usage says was chosen.
TEST_F(PromisedPolicy, MakesTheSameOfItsOwnSpec) {
  for (const json& spec : {json("compact"), json{{"max_kl", 0.003}}, json{{"max_kl", 0.003}, {"shadow", 0.1}},
                           json{{"max_kl", 0.003}, {"shadow", 0.1}, {"on_drift", "step_up"}}}) {
    const auto policy = make_policy(context_, spec), again = make_policy(context_, policy->spec());
    EXPECT_EQ(again->spec(), policy->spec()) << spec;
    if (spec.contains("shadow")) {
      EXPECT_EQ(again->promise()->max_kl, 0.003) << spec;
    }
  }
}

TEST_F(PromisedPolicy, ErrorsNameTheKey) {
  const auto error_of = [&](const json& spec) -> std::string {
    try {
      make_policy(context_, spec);
      return "";
    } catch (const CacheError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of({{"max_kl", -1}}), HasSubstr("kv_cache.max_kl: expected a number in [0, "));
  EXPECT_THAT(error_of({{"max_kl", "low"}}), HasSubstr("kv_cache.max_kl: expected a number"));
  EXPECT_THAT(error_of({{"max_kl", 0.1}, {"bits", 3}}), HasSubstr("kv_cache.bits: expected max_kl, "));
  EXPECT_THAT(error_of({{"max_kl", nullptr}}), HasSubstr("kv_cache.policy: expected the name of a policy"));
  EXPECT_THAT(error_of({{"max_kl", 0.1}, {"on_drift", "step_up"}}), HasSubstr("kv_cache.on_drift: "));
  EXPECT_THAT(error_of({{"policy", "full"}, {"on_drift", "report"}}), HasSubstr("\"shadow\""));
  EXPECT_THAT(error_of({{"policy", "k8v8"}, {"shadow", 0.1}, {"on_drift", "step_up"}}),
              HasSubstr("needs a policy on the frontier"));
  EXPECT_THAT(error_of({{"policy", "k8v8"}, {"shadow", 0.1}, {"max_kl", 0.1}}),
              HasSubstr("kv_cache.max_kl: needs a policy on the frontier"));
  EXPECT_THAT(error_of({{"policy", "balanced"}, {"max_kl", 0.1}}), HasSubstr("\"shadow\""));
  context_.load_sensitivity = nullptr;
  EXPECT_THAT(error_of({{"max_kl", 0.1}}), HasSubstr("smartkv calibrate"));
}

}  // namespace
}  // namespace smartkv
