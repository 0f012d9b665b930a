// The engine's counters and histograms. Not thread-safe; the engine guards it with its mutex.
#pragma once

#include "engine/engine.h"

namespace smartkv {

class StatsRecorder {
 public:
  StatsRecorder();

  void request_finished(FinishReason reason, const RequestTimings& timings);
  void first_token(double seconds);  // since the request was submitted
  // Records n tokens that one pass gave a choice, `seconds` after the choice's token before them.
  void next_tokens(int64_t n, double seconds);
  // Records a round after which the choice was n_emitted tokens longer.
  void drafted(const DraftRound& round, int64_t n_emitted);
  // Adds a finished sequence's SequenceCache::details() to the diagnostics of its policy.
  void sequence_finished(const std::map<std::string, double>& details, PolicyStats* policy);

  // Returns how many seconds a refused client should wait, 1 to 60: the time between the starts of two requests,
  // estimated from the last ones.
  int retry_after_s(int64_t n_running) const;

  EngineStats stats;  // counters are kept here; gauges are filled in by the engine

 private:
  double service_s_ = 1;  // moving average of the seconds from first scheduled to finished
};

}  // namespace smartkv
