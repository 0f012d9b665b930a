// The engine's counters and histograms. Not thread-safe: the engine guards it.
#pragma once

#include "engine/engine.h"

namespace smartkv {

class StatsRecorder {
 public:
  StatsRecorder();

  void request_finished(FinishReason reason, const RequestTimings& timings);
  void first_token(double seconds);
  void next_tokens(int64_t n, double seconds);  // since the token before them, of the same choice
  void drafted(const DraftRound& round, int64_t n_emitted);
  void sequence_finished(const std::map<std::string, double>& details, PolicyStats* policy);  // SequenceCache::details()

  // Seconds between the starts of two requests, as the last ones suggest: what a refused client should wait.
  int retry_after_s(int64_t n_running) const;

  EngineStats stats;  // counters are kept here; gauges are filled in by the engine

 private:
  double service_s_ = 1;  // moving average: first scheduled to finished
};

}  // namespace smartkv
