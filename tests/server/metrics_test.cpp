#include "server/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <regex>

#include "tests/server/test_server.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, EveryHelpTextSaysWhatTheMetricMeans) {
  EngineStats stats;
  stats.kv_offload_bytes_budget = 1;
  const std::string text = http::metrics_text(stats, "m", http::RequestCounter());
  const std::regex help("# HELP (\\S+) (.*)");
  int seen = 0;
  for (std::sregex_iterator found(text.begin(), text.end(), help), end; found != end; ++found, ++seen) {
    EXPECT_GE((*found)[2].length(), 15) << (*found)[0];
    EXPECT_THAT(std::string((*found)[2]), Not(HasSubstr("See docs"))) << (*found)[1];
  }
  EXPECT_GT(seen, 40);
}

TEST(Metrics, DiagnosticsOfCachesHaveTheirPolicy) {
  EngineStats stats;
  PolicyStats& policy = stats.policies["channel_packed"];
  policy.sums["channel_backoffs_total"] = 5;
  policy.distributions["kv_drift_l2"] = {.bounds = {0.1, 1}, .counts = {1, 1, 0}, .sum = 0.3, .count = 2};
  const std::string text = http::metrics_text(stats, "m", http::RequestCounter());
  for (const char* line : {"# TYPE smartkv:channel_backoffs_total counter\n",
                           "smartkv:channel_backoffs_total{model_name=\"m\",policy=\"channel_packed\"} 5\n",
                           "# TYPE smartkv:kv_drift_l2 histogram\n",
                           "smartkv:kv_drift_l2_bucket{model_name=\"m\",policy=\"channel_packed\",le=\"1\"} 2\n",
                           "smartkv:kv_drift_l2_sum{model_name=\"m\",policy=\"channel_packed\"} 0.3\n",
                           "smartkv:kv_drift_l2_count{model_name=\"m\",policy=\"channel_packed\"} 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, MissesOfThePrefixCacheHaveTheirReason) {
  EngineStats stats;
  stats.prefix_cache_misses["evicted"] = 3;
  EXPECT_THAT(http::metrics_text(stats, "m", http::RequestCounter()),
              HasSubstr("smartkv:prefix_cache_misses_total{model_name=\"m\",reason=\"evicted\"} 3\n"));
}

TEST(Metrics, RefusalsByTheLimitsOfAKeyAreCounted) {
  const std::string file = ::testing::TempDir() + "metrics_keys.json";
  std::ofstream(file) << R"({"alice": {"key": "sk-0123456789abcdef", "concurrent_requests": 1}})";
  test::TestServer server({.api_keys_file = file});
  server.engine.hold_after(0);
  const httplib::Headers key = {{"Authorization", "Bearer sk-0123456789abcdef"}};
  const std::string body = R"({"prompt": "x"})";
  auto running = std::async(std::launch::async, [&] {
    return server.client().Post("/v1/completions", key, body, "application/json")->status;
  });
  ASSERT_TRUE(server.engine.wait_for_live_streams(1));
  EXPECT_EQ(server.client().Post("/v1/completions", key, body, "application/json")->status, 429);
  EXPECT_THAT(server.client().Get("/metrics", key)->body,
              HasSubstr("smartkv:requests_rejected_total{model_name=\"fake\",reason=\"key_limit\"} 1\n"));
  server.engine.release();
  EXPECT_EQ(running.get(), 200);
}

}  // namespace
}  // namespace smartkv
