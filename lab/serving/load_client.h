// A load generator. It sends many requests at once to an OpenAI-compatible server, over real connections.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/serving/completion_stream.h"
#include "lab/serving/serving_plan.h"

namespace smartkv {

struct LoadOptions {
  bool retry = true;                   // after a 429, wait as long as Retry-After says and send the request again
  std::chrono::seconds timeout{3600};  // a request fails if no byte arrives for so long
};

// A request for a streamed answer, and what a complete answer has.
struct StreamedRequest {
  std::string path, body;                // "/v1/completions" and JSON
  std::optional<int64_t> prompt_tokens;  // nullopt if any number is right
  int64_t output_tokens = 0;
};

// A client of one server at "http://HOST:PORT". Thread-safe.
class LoadClient {
 public:
  using Clock = std::chrono::steady_clock;

  // Asks the server for the name of its model. Throws std::runtime_error if the server does not answer, and
  // std::invalid_argument for an address of another form.
  LoadClient(const std::string& url, const LoadOptions& options);

  // Sends all requests at the same moment, each on its own connection and thread. Sampling is greedy, and ignore_eos
  // makes every answer reach its length. Returns the outcomes, in the order of the requests, when the last request has
  // ended.
  std::vector<RequestOutcome> send_all(std::span<const ServingRequest> requests) const;
  RequestOutcome send(const ServingRequest& request) const { return send_all({&request, 1}).front(); }

  // Sends one request on a connection of its own and returns its outcome. Its times are seconds since `start`.
  RequestOutcome ask(const StreamedRequest& request, Clock::time_point start) const;
  const std::string& model() const { return model_; }  // the server's name for it

  // Returns the text of /metrics, or nullopt if the server has none.
  std::optional<std::string> metrics() const;

 private:
  StreamedRequest completion(const ServingRequest& request) const;

  std::string address_, model_;
  LoadOptions options_;
};

// Returns the value of a Prometheus sample, summed over its labels, or nullopt if there is no sample of this name.
std::optional<double> metric_value(std::string_view text, std::string_view name);

// Records the largest value of a gauge in a server's /metrics, which a thread reads ten times a second until stop().
// `client` must outlive the object.
class PeakGauge {
 public:
  PeakGauge(const LoadClient& client, std::string name);
  ~PeakGauge();
  std::optional<double> stop();  // stops reading; returns the largest value, or nullopt if the server has no such gauge

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smartkv
