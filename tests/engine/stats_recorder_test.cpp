#include "engine/stats_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cache/policy.h"

namespace smartkv {
namespace {

TEST(StatsRecorder, DiagnosticsAddUpOverSequences) {
  StatsRecorder recorder;
  PolicyStats policy;
  recorder.sequence_finished({{"channel_backoffs", 2}, {"drift_l2_mean", 0.02}, {"drift_samples", 10}}, &policy);
  recorder.sequence_finished({{"channel_backoffs", 3}, {"drift_l2_mean", 0.2}, {"drift_samples", 5}}, &policy);
  recorder.sequence_finished({{"watermark_hits", 4}, {"outlier_entries", 7}, {"summary_levels", 2}}, &policy);
  EXPECT_EQ(policy.sums.at("channel_backoffs_total"), 5);
  EXPECT_EQ(policy.sums.at("kv_drift_samples_total"), 15);
  EXPECT_EQ(policy.sums.at("summary_watermark_hits_total"), 4);
  const Histogram& drift = policy.distributions.at("kv_drift_l2");
  EXPECT_EQ(drift.count, 2);
  EXPECT_DOUBLE_EQ(drift.sum, 0.22);
  EXPECT_EQ(policy.distributions.at("summary_outlier_entries").sum, 7);
  EXPECT_EQ(policy.distributions.at("summary_levels").count, 1);
}

TEST(StatsRecorder, AFigureThatIsNotAbsentIsFinite) {
  StatsRecorder recorder;
  PolicyStats policy;
  recorder.sequence_finished({{"drift_l2_mean", std::nan("")}, {"unknown", 1}}, &policy);
  EXPECT_TRUE(policy.sums.empty());
  EXPECT_TRUE(policy.distributions.empty());
}

TEST(StatsRecorder, MetricsOfCachesAreWellFormed) {
  std::set<std::string_view> keys, names;
  for (const CacheMetric& metric : cache_metrics()) {
    EXPECT_TRUE(keys.insert(metric.key).second) << metric.key;
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_EQ(metric.bounds.empty(), metric.name.ends_with("_total")) << metric.name;
    EXPECT_TRUE(std::is_sorted(metric.bounds.begin(), metric.bounds.end())) << metric.name;
    EXPECT_TRUE(metric.help.size() > 20 && metric.help.ends_with('.')) << metric.name;
  }
}

// A wait of half a millisecond must not be reported as 150 ms, the median that a first bucket of 0.3 s gives.
TEST(StatsRecorder, ShortWaitsHaveBuckets) {
  StatsRecorder recorder;
  for (const Histogram* histogram : {&recorder.stats.queue_time, &recorder.stats.e2e_latency,
                                     &recorder.stats.time_per_output_token, &recorder.stats.time_to_first_token}) {
    EXPECT_LE(histogram->bounds.front(), 0.001);
  }
  RequestTimings timings;
  timings.queued_ms = 0.5;
  recorder.request_finished(FinishReason::kStop, timings);
  EXPECT_EQ(recorder.stats.queue_time.counts.front(), 1);
}

}  // namespace
}  // namespace smartkv
