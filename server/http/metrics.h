// GET /metrics: the statistics of the engine and the server as Prometheus text (exposition format 0.0.4).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace smartkv::http {

// Counts answers by route and status, and requests refused by the limits of an API key. Thread-safe.
class RequestCounter {
 public:
  void add(const std::string& route, int status);
  std::map<std::pair<std::string, int>, uint64_t> counts() const;
  void refuse_for_key() { ++key_refusals_; }
  uint64_t key_refusals() const { return key_refusals_; }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> counts_;
  std::atomic<uint64_t> key_refusals_ = 0;
};

// Returns the text of /metrics. Metrics are named smartkv:NAME; the ones that autoscalers and gateways look for also
// appear as vllm:NAME. CPU time and resident memory have their usual names, process_NAME.
std::string metrics_text(const EngineStats& stats, const std::string& model, const RequestCounter& requests);

}  // namespace smartkv::http
