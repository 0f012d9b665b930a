// /metrics: the engine's and the server's numbers as Prometheus text (exposition format 0.0.4).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace smartkv::http {

// Answers by route and status, and requests that the limits of an API key refused. Thread-safe.
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

// Each figure as smartkv:NAME; those that autoscalers and gateways look for also as vllm:NAME.
std::string metrics_text(const EngineStats& stats, const std::string& model, const RequestCounter& requests);

}  // namespace smartkv::http
