// A load generator: many requests to an OpenAI-compatible server at once, over real connections.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/benchmark/completion_stream.h"
#include "server/benchmark/serving_plan.h"

namespace smartkv {

struct LoadOptions {
  bool retry = true;                           // a 429 waits as long as Retry-After says and asks again
  std::chrono::seconds timeout{3600};          // without a byte: the request has failed
};

// A server by its address, "http://HOST:PORT". Thread-safe.
class LoadClient {
 public:
  // Asks for the served model's name. Throws std::runtime_error if nothing answers, std::invalid_argument for an
  // address of another form.
  LoadClient(const std::string& url, const LoadOptions& options);

  // Sends every request at the same moment, each on a connection and a thread of its own: greedy, never ending before
  // its length. Returns when the last one has ended; outcomes in the order of the requests.
  std::vector<RequestOutcome> send_all(std::span<const ServingRequest> requests) const;
  RequestOutcome send(const ServingRequest& request) const { return send_all({&request, 1}).front(); }

  // The text of /metrics; null: the server has none.
  std::optional<std::string> metrics() const;

 private:
  using Clock = std::chrono::steady_clock;
  RequestOutcome ask(const std::string& body, const ServingRequest& request, Clock::time_point start) const;
  std::string body_of(const ServingRequest& request) const;

  std::string address_, model_;
  LoadOptions options_;
};

// The value of a Prometheus sample, the sum over its labels; null: there is none of this name.
std::optional<double> metric_value(std::string_view text, std::string_view name);

// The greatest value of a gauge of a server's /metrics while the object lives, looked at ten times a second.
class PeakGauge {
 public:
  PeakGauge(const LoadClient& client, std::string name);
  ~PeakGauge();
  std::optional<double> stop();  // ends looking; null: the server has no such gauge

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smartkv
