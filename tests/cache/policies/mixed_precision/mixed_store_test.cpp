#include "cache/policies/mixed_precision/mixed_store.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>

#include "cache/stores/staged_sequence.h"
#include "kernels/cpu_level.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

class MixedStoreTest : public testing::TestWithParam<double> {
 protected:
  StagedSequence make(const MixedOptions& options) {
    std::vector<std::unique_ptr<TokenStore>> stores;
    stores.push_back(MixedStoreFactory(options).create(context_));
    return StagedSequence(context_, {whole_pages(options.window), options.prompt_stride, 0}, std::move(stores));
  }

  // Returns a sequence that has the parameter's bits at a length of `horizon` tokens.
  StagedSequence make_at(int64_t horizon) {
    MixedOptions options;
    options.bits = GetParam();
    options.horizon = horizon;
    options.least_bits = GetParam() < 3.25 ? 0 : 2;
    return make(options);
  }

  ThreadPool threads_{2};
  CacheShape shape_{4, 3, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
};

TEST_P(MixedStoreTest, KeepsTheBudgetWithEverythingCounted) {
  StagedSequence cache = make_at(1600);
  CacheDriver driver(shape_, 9, &threads_);
  const double values = static_cast<double>(shape_.bytes_per_token()) / 2;
  driver.run(&cache, 1600, 64);
  EXPECT_LE(8.0 * static_cast<double>(cache.stats().bytes) / (1600 * values), GetParam());
  EXPECT_GT(8.0 * static_cast<double>(cache.stats().bytes) / (1600 * values), 0.93 * GetParam());
  driver.run(&cache, 2560, 64);
  EXPECT_LE(8.0 * static_cast<double>(cache.stats().bytes) / (2560 * values), GetParam());
}

// If a new page narrowed many others, prompts that resume from one state would share little of it.
TEST_P(MixedStoreTest, FewPagesAreNarrowedForANewOne) {
  StagedSequence cache = make_at(2048);
  CacheDriver driver(shape_, 9, &threads_);
  driver.run(&cache, 1984, 64);
  const auto fork = cache.fork();
  driver.run(fork.get(), 2048, 64);
  const auto pages = [&](int64_t layer) {
    std::set<const void*> places;
    std::vector<kernels::KvSegment> segments;
    for (SequenceCache* of : {static_cast<SequenceCache*>(&cache), fork.get()}) of->view(layer, 0, &segments);
    for (const kernels::KvSegment& segment : segments) places.insert(segment.k);
    return static_cast<int64_t>(places.size());
  };
  int64_t all = 0;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) all += pages(layer);
  // The 32 pages of the first sequence, and the fork's own: a new quantized page and two narrowed ones.
  EXPECT_LE(all, shape_.n_layers * (32 + 1 + 2));
}

INSTANTIATE_TEST_SUITE_P(Bits, MixedStoreTest, testing::Values(2.6, 3.5, 4.5, 6.0, 8.0));

using MixedForecastTest = MixedStoreTest;

TEST_P(MixedForecastTest, LearnsAndReports) {
  MixedOptions options;
  options.forecast.enabled = true;
  StagedSequence cache = make(options);
  CacheDriver driver(shape_, 9, &threads_);
  EXPECT_EQ(cache.details().count("forecast_last_loss"), 0u);  // no step yet
  driver.run(&cache, 1600, 64);
  const auto details = cache.details();
  EXPECT_GT(details.at("forecast_pending"), 0);
  EXPECT_GT(details.at("forecast_last_loss"), 0);
  EXPECT_GT(details.at("average_rms_error"), 0);
  // The queries are random, so importance is noise about a mean. The network finds the mean, the last value does not.
  EXPECT_LT(details.at("forecast_rms_error"), details.at("average_rms_error"));
}

// The forecast decides on widths, and so on the code that reads a page. All CPU levels must read the same from the
// pages that it has shaped.
TEST_P(MixedForecastTest, EveryCpuLevelAttendsAlikeToItsPages) {
  using kernels::CpuLevel;
  MixedOptions options;
  options.forecast.enabled = true;
  options.forecast.blend = 1;
  StagedSequence cache = make(options);
  options.forecast.enabled = false;
  StagedSequence plain = make(options);
  CacheDriver driver(shape_, 9, &threads_);
  driver.run(&cache, 1600, 64);
  driver.run(&plain, 1600, 64);
  ASSERT_TRUE(cache.details().contains("forecast_last_loss"));
  std::vector<std::vector<float>> expected;
  for (const CpuLevel level :
       {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni, CpuLevel::kAmx}) {
    if (level > kernels::detected_cpu_level()) continue;
    kernels::set_cpu_level(level);
    const auto fork = cache.fork(), other = plain.fork();
    const auto found = driver.pass(fork.get(), 8);
    EXPECT_NE(driver.pass(other.get(), 8), found);  // the forecast led to other pages
    if (expected.empty()) expected = found;
    double error = 0, size = 0;
    for (size_t token = 0; token < found.size(); ++token) {
      for (size_t i = 0; i < found[token].size(); ++i) {
        error += std::pow(found[token][i] - expected[token][i], 2);
        size += std::pow(expected[token][i], 2);
      }
    }
    EXPECT_LT(std::sqrt(error / size), 4e-3) << "level " << static_cast<int>(level);  // results are rounded to bf16
  }
  kernels::set_cpu_level(kernels::detected_cpu_level());
}

INSTANTIATE_TEST_SUITE_P(Bits, MixedForecastTest, testing::Values(4.5));

TEST_P(MixedForecastTest, BytesBoundTheSequenceAsItGrows) {
  MixedOptions options;
  options.bytes = 3 << 19;
  StagedSequence cache = make(options);
  CacheDriver driver(shape_, 9, &threads_);
  for (int64_t n = 200; n <= 1800; n += 200) {
    driver.run(&cache, n, 64);
    EXPECT_LE(cache.stats().bytes, options.bytes) << n;
  }
  EXPECT_GT(cache.stats().bytes, options.bytes * 8 / 10);
}

TEST(MixedPrecision, RefusesABudgetThatTheNarrowestPagesDoNotMeet) {
  const CacheShape shape{4, 3, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  const auto message = [&](double bits, const nlohmann::json& least_bits) {
    nlohmann::json spec = {{"policy", "mixed_precision"}, {"bits", bits}, {"horizon", 1024}};
    if (!least_bits.is_null()) spec["least_bits"] = least_bits;
    return policy_error(context, spec);
  };
  EXPECT_NE(message(2.7, 2).find("kv_cache.bits: expected at least 3"), std::string::npos) << message(2.7, 2);
  EXPECT_EQ(message(2.7, 0), "no error");
  EXPECT_EQ(message(2.7, nullptr), "no error");  // so few bits drop columns by default
  EXPECT_NE(message(1.2, nullptr).find("pages of 0 bits"), std::string::npos) << message(1.2, nullptr);
  EXPECT_NE(message(4.5, 1).find("kv_cache.least_bits: expected 0 or 2, found 1"), std::string::npos);
}

// A budget below 2 bits needs columns without codes.
TEST(MixedPrecision, DropsWhatMattersLeast) {
  const CacheShape shape{4, 3, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  // Counts all quads, and those without codes.
  const auto columns = [&](const nlohmann::json& spec) {
    const auto policy = make_policy(context, spec);
    const auto cache = policy->new_sequence(0);
    CacheDriver(shape, 9, nullptr).run(cache.get(), 1600, 64);
    std::vector<kernels::KvSegment> segments;
    cache->view(1, 0, &segments);
    std::pair<int64_t, int64_t> count;
    for (const kernels::KvSegment& segment : segments) {
      if (segment.format != kernels::KvSegment::Format::kQuantized) continue;
      count.first += segment.quantized.k.n_quads() + segment.quantized.v.n_quads();
      count.second += segment.quantized.k.dropped + segment.quantized.v.dropped;
    }
    return count;
  };
  const auto some = columns({{"policy", "mixed_precision"}, {"bits", 2.2}, {"horizon", 1600}});
  EXPECT_GT(some.second, some.first / 10);
  EXPECT_LT(some.second, some.first);
  EXPECT_EQ(columns({{"policy", "mixed_precision"}, {"bits", 3.5}, {"horizon", 1600}}).second, 0);
  EXPECT_EQ(columns({{"policy", "mixed_precision"}, {"bits", 3.1}, {"least_bits", 2}, {"horizon", 1600}}).second, 0);
}

TEST(MixedPrecision, TakesEitherBitsOrBytes) {
  const CacheShape shape{4, 3, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  const auto message = [&](const nlohmann::json& spec) { return policy_error(context, spec); };
  EXPECT_EQ(message({{"policy", "mixed_precision"}, {"bytes", 1 << 20}}), "no error");
  EXPECT_NE(message({{"policy", "mixed_precision"}, {"bytes", 1 << 20}, {"bits", 4}}).find("found both"),
            std::string::npos);
  EXPECT_NE(message({{"policy", "mixed_precision"}, {"bytes", 1000}}).find("kv_cache.bytes: expected at least "),
            std::string::npos);
}

}  // namespace
}  // namespace smartkv
