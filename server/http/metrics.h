// /metrics: the engine's and the server's numbers as Prometheus text (exposition format 0.0.4).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace smartkv::http {

// Answers by route and status. Thread-safe.
class RequestCounter {
 public:
  void add(const std::string& route, int status);
  std::map<std::pair<std::string, int>, uint64_t> counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> counts_;
};

// Each figure as smartkv:NAME; those that autoscalers and gateways look for also as vllm:NAME.
std::string metrics_text(const EngineStats& stats, const std::string& model, const RequestCounter& requests);

}  // namespace smartkv::http
