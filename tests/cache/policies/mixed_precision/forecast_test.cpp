#include "cache/policies/mixed_precision/forecast.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

// A source of samples. The next log importance follows from the features but is far from the last one.
struct World {
  std::minstd_rand random{3};
  std::uniform_real_distribution<float> uniform{-1.0f, 1.0f};

  ImportanceForecast::Features features() {
    ImportanceForecast::Features f;
    for (float& value : f) value = uniform(random);
    return f;
  }
  static float truth(const ImportanceForecast::Features& f) { return 0.3f * f[0] - 0.8f * f[2] + 0.5f * f[5] - 1.0f; }
};

TEST(ImportanceForecast, UntrainedItIsNearTheLastImportance) {
  const ImportanceForecast forecast(ForecastOptions{.enabled = true});
  const ImportanceForecast::Features f = {-7.0f, 0, 0, 0, 0, 0};
  EXPECT_NEAR(forecast.predict(f), -7.0f, 1.5f);
}

TEST(ImportanceForecast, LearnsWhatTheLastImportanceDoesNotTell) {
  ImportanceForecast forecast(ForecastOptions{.enabled = true});
  World world;
  const auto error = [&] {
    World fresh;
    fresh.random.seed(99);
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      const auto f = fresh.features();
      sum += std::pow(forecast.predict(f) - World::truth(f), 2) / 200;
    }
    return sum;
  };
  const double before = error();
  for (int i = 0; i < 20000; ++i) {
    const auto f = world.features();
    forecast.learn(f, World::truth(f));
  }
  EXPECT_LT(error(), 0.01);
  EXPECT_LT(error(), before / 20);
  EXPECT_LT(forecast.last_loss().value(), 0.01);
  EXPECT_EQ(forecast.steps(), 20000 / 32);
}

TEST(ImportanceForecast, ReplaysOldSamplesUntilHistoryOverwritesThem) {
  ForecastOptions options{.enabled = true};
  options.history = 64;
  ImportanceForecast forecast(options);
  World world;
  for (int i = 0; i < 50; ++i) forecast.learn(world.features(), 0);
  EXPECT_EQ(forecast.samples(), 50);  // training at the 32nd sample did not clear them
  for (int i = 0; i < 50; ++i) forecast.learn(world.features(), 0);
  EXPECT_EQ(forecast.samples(), 64);
  EXPECT_GE(ImportanceForecast::bytes(options), 64 * static_cast<int64_t>(sizeof(ImportanceForecast::Sample)));
}

TEST(ImportanceForecast, HasNoLossBeforeItsFirstStep) {
  ImportanceForecast forecast(ForecastOptions{.enabled = true});
  World world;
  for (int i = 0; i < 31; ++i) forecast.learn(world.features(), 0);
  EXPECT_FALSE(forecast.last_loss().has_value());
  forecast.learn(world.features(), 0);
  EXPECT_TRUE(forecast.last_loss().has_value());
}

// The function to learn is beyond one hidden unit.
TEST(ImportanceForecast, HiddenUnitsAreAnOption) {
  const auto error = [](int64_t hidden) {
    ForecastOptions options{.enabled = true};
    options.hidden = hidden;
    ImportanceForecast forecast(options);
    World world;
    const auto truth = [](const ImportanceForecast::Features& f) { return f[0] + std::abs(f[2]) - std::abs(f[5]); };
    for (int i = 0; i < 20000; ++i) {
      const auto f = world.features();
      forecast.learn(f, truth(f));
    }
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      const auto f = world.features();
      sum += std::pow(forecast.predict(f) - truth(f), 2) / 200;
    }
    return sum;
  };
  EXPECT_LT(error(32), error(1) / 2);
  ForecastOptions small{.enabled = true}, large = small;
  large.hidden = small.hidden + 1;
  EXPECT_EQ(ImportanceForecast::bytes(large) - ImportanceForecast::bytes(small),
            3 * 8 * 4);  // weights and two moments, f32
}

TEST(ImportanceForecast, SameSamplesSameForecast) {
  ImportanceForecast a(ForecastOptions{.enabled = true}), b(ForecastOptions{.enabled = true});
  World world;
  for (int i = 0; i < 500; ++i) {
    const auto f = world.features();
    a.learn(f, World::truth(f));
    b.learn(f, World::truth(f));
  }
  const auto f = world.features();
  EXPECT_EQ(a.predict(f), b.predict(f));
}

}  // namespace
}  // namespace smartkv
