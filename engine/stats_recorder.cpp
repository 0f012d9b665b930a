#include "engine/stats_recorder.h"

#include <array>
#include <cmath>

#include "cache/policy.h"

namespace smartkv {
namespace {

Histogram make_histogram(std::vector<double> bounds) {
  Histogram histogram;
  histogram.counts.assign(bounds.size() + 1, 0);
  histogram.bounds = std::move(bounds);
  return histogram;
}

void observe(Histogram* histogram, double value, uint64_t times = 1) {
  const auto& bounds = histogram->bounds;
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  histogram->counts[static_cast<size_t>(bucket)] += times;
  histogram->sum += value * static_cast<double>(times);
  histogram->count += times;
}

// Names of RequestError::Kind, in its order.
constexpr std::array<std::string_view, 7> kKinds = {"invalid",  "context_length", "too_large",  "overloaded",
                                                    "draining", "lost",           "client_gone"};

const char* finished_label(FinishReason reason) {
  if (reason == FinishReason::kStop) return "stop";
  if (reason == FinishReason::kLength) return "length";
  return reason == FinishReason::kCancelled ? "abort" : "error";
}

}  // namespace

std::string_view name(RequestError::Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

StatsRecorder::StatsRecorder() {
  const std::vector<double> request_bounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,
                                              1.5,   2,      2.5,   5,    10,    15,   20,  30,  40,  50,  60,  120};
  stats.time_to_first_token =
      make_histogram({0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40});
  stats.time_per_output_token =
      make_histogram({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5});
  stats.e2e_latency = make_histogram(request_bounds);
  stats.queue_time = make_histogram(request_bounds);
  for (const char* reason : {"stop", "length", "abort", "error"}) stats.finished[reason] = 0;
  for (const std::string_view kind : kKinds) stats.rejected[std::string(kind)] = 0;
}

void StatsRecorder::request_finished(FinishReason reason, const RequestTimings& timings) {
  ++stats.finished[finished_label(reason)];
  observe(&stats.e2e_latency, timings.total_ms / 1000);
  observe(&stats.queue_time, timings.queued_ms / 1000);
  service_s_ += 0.1 * ((timings.prefill_ms + timings.decode_ms) / 1000 - service_s_);
}

void StatsRecorder::first_token(double seconds) { observe(&stats.time_to_first_token, seconds); }

void StatsRecorder::next_tokens(int64_t n, double seconds) {
  observe(&stats.time_per_output_token, seconds / static_cast<double>(n), static_cast<uint64_t>(n));
}

void StatsRecorder::drafted(const DraftRound& round, int64_t n_emitted) {
  stats.speculation.add_round(static_cast<int64_t>(round.tokens.size()), round.accepted, n_emitted);
}

void StatsRecorder::sequence_finished(const std::map<std::string, double>& details, PolicyStats* policy) {
  for (const CacheMetric& metric : cache_metrics()) {
    const auto detail = details.find(std::string(metric.key));
    if (detail == details.end() || !std::isfinite(detail->second)) continue;
    const std::string key(metric.name);
    if (metric.bounds.empty()) {
      policy->sums[key] += detail->second;
    } else {
      observe(&policy->distributions.try_emplace(key, make_histogram(metric.bounds)).first->second, detail->second);
    }
  }
}

int StatsRecorder::retry_after_s(int64_t n_running) const {
  const double seconds = std::ceil(service_s_ / static_cast<double>(std::max<int64_t>(1, n_running)));
  return static_cast<int>(std::clamp(seconds, 1.0, 60.0));
}

}  // namespace smartkv
