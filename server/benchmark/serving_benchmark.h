// Goodput at fixed cache memory, over HTTP: for every case and policy a server of its own is started and driven with
// all requests at once.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/evaluation/policy_list.h"
#include "server/benchmark/load_client.h"
#include "server/benchmark/serving_plan.h"

namespace smartkv {

// What one case did to one server in one repetition. Times in seconds.
struct ServingRun {
  int64_t requests = 0, failed = 0, retries = 0;
  std::string failure;                                            // of the first request that failed
  double wall_s = 0;                                              // from the common start to the last token
  double tokens_per_s = 0;                                        // goodput: tokens of completed requests only
  double first_token_p50_s = 0, first_token_p99_s = 0;            // of completed requests, since the common start
  double per_token_p50_s = 0;                                     // between tokens of a request, after its first
  double alone_s = 0;                                             // fairness: median time to first token alone
  double delay = 0;                                               // fairness: first_token_p50_s over alone_s
  int64_t prompt_tokens = 0, cached_tokens = 0;                   // of completed requests
  std::optional<double> preemptions, kv_bytes_peak;               // null: the server does not tell
};

// The outcomes of requests that were sent at once.
ServingRun summarize(std::span<const RequestOutcome> outcomes);

// The value below which a share `p` of `values` lies, between the two nearest linearly; 0 of none.
double percentile(std::vector<double> values, double p);

// Drives the server behind `client` with a case, after a request that warms it up.
ServingRun run_serving_case(const LoadClient& client, const ServingCase& one, const PromptSource& prompts,
                            int repetition);

// A server that is there already, of any OpenAI-compatible kind, with the same tokenizer.
struct ServingPeer {
  std::string name, url;
};

struct ServingBenchmarkOptions {
  std::string binary;                                           // the smartkv program
  std::filesystem::path model, text;
  std::vector<PolicySpec> policies;                             // the first is what the others are compared with
  std::vector<ServingCase> cases;
  std::vector<ServingPeer> peers;
  std::vector<std::pair<std::string, std::string>> serve_options;  // name and value, of every server
  std::vector<std::pair<std::string, std::string>> variants;    // each policy runs once more with each of these
  int repetitions = 3;                                          // of all servers of a case, in turn
  LoadOptions load;
};

struct ServingReport {
  nlohmann::ordered_json conditions = nlohmann::ordered_json::object();
  // One for every case and server: "case", "what", "server" and the medians of its repetitions; absent: no such value.
  std::vector<nlohmann::ordered_json> rows;

  nlohmann::ordered_json to_json() const;
  static ServingReport from_json(const nlohmann::ordered_json& json);  // throws nlohmann::json::exception
  std::string to_table() const;
  std::string to_svg() const;  // bars of goodput, a panel for each case
};

// The rows of a case. `runs` holds the repetitions of each server in turn; the first server is the reference of the
// ratios, and `base[i]` the server that server i is a variant of (i itself: none).
std::vector<nlohmann::ordered_json> serving_rows(const ServingCase& one, std::span<const std::string> servers,
                                                 std::span<const size_t> base,
                                                 std::span<const std::vector<ServingRun>> runs);

// What the cases will send, for whoever starts peers: an object each, with "longest_request" in tokens. Throws as below.
nlohmann::ordered_json describe_cases(const ServingBenchmarkOptions& options);

using OnServingRun = std::function<void(const ServingCase&, const std::string& server, const ServingRun&)>;

// Throws std::invalid_argument for options, std::runtime_error for servers that do not start or answer.
ServingReport run_serving_benchmark(const ServingBenchmarkOptions& options, const OnServingRun& on_run = nullptr);

}  // namespace smartkv
