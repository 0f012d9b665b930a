// Measures goodput at fixed cache memory, over HTTP. For every case and policy it starts a server and sends it all
// requests of the case at once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/evaluation/policy_list.h"
#include "lab/serving/load_client.h"
#include "lab/serving/serving_plan.h"

namespace smartkv {

// The result of one case on one server in one repetition. Times are in seconds. Times and tokens are those of completed
// requests only.
struct ServingRun {
  int64_t requests = 0, failed = 0, retries = 0;
  std::string failure;                                  // failure of the first request that failed
  double wall_s = 0;                                    // from the common start to the last token
  double tokens_per_s = 0;                              // goodput: output tokens per second
  double first_token_p50_s = 0, first_token_p99_s = 0;  // time from the common start to the first token
  double per_token_p50_s = 0;                           // time between two tokens of a request
  double alone_s = 0;  // in a fairness case: median time to the first token of a request that is alone
  double delay = 0;    // in a fairness case: first_token_p50_s over alone_s
  int64_t prompt_tokens = 0, cached_tokens = 0;
  std::optional<double> preemptions, kv_bytes_peak;  // nullopt if the server does not report them
};

// Summarizes the outcomes of requests that were sent at once.
ServingRun summarize(std::span<const RequestOutcome> outcomes);

// Returns the percentile of `values` at the fraction `p`, interpolated linearly; 0 if there are no values.
double percentile(std::vector<double> values, double p);

// Runs a case on the server behind `client`, after a request that warms it up. Throws std::runtime_error if that fails.
ServingRun run_serving_case(const LoadClient& client, const ServingCase& one, const PromptSource& prompts,
                            int repetition);

// A server that already runs: any OpenAI-compatible one with the same tokenizer.
struct ServingPeer {
  std::string name, url;
};

// Options of run_serving_benchmark().
struct ServingBenchmarkOptions {
  std::string binary;  // path of the smartkv program
  std::filesystem::path model, text;
  std::vector<PolicySpec> policies;  // the others are compared with the first
  std::vector<ServingCase> cases;
  std::vector<ServingPeer> peers;
  std::vector<std::pair<std::string, std::string>> serve_options;  // options of every server, as name and value
  std::vector<std::pair<std::string, std::string>> variants;  // each policy runs once more with each of these options
  int repetitions = 3;                                        // in each repetition of a case, all servers run in turn
  LoadOptions load;
};

// The result of a benchmark.
struct ServingReport {
  nlohmann::ordered_json conditions = nlohmann::ordered_json::object();
  // One row for every case and server: "case", "what", "server" and the medians over the repetitions. A value that was
  // not measured is absent.
  std::vector<nlohmann::ordered_json> rows;

  nlohmann::ordered_json to_json() const;
  static ServingReport from_json(const nlohmann::ordered_json& json);  // throws nlohmann::json::exception
  std::string to_table() const;
  std::string to_svg() const;  // a bar chart of goodput, with a panel for each case
};

// Returns the rows of a case. runs[i] holds the repetitions of server i. Ratios refer to the first server. Server i is
// a variant of server base[i]; base[i] is i if it is not a variant.
std::vector<nlohmann::ordered_json> serving_rows(const ServingCase& one, std::span<const std::string> servers,
                                                 std::span<const size_t> base,
                                                 std::span<const std::vector<ServingRun>> runs);

// Describes what the cases will send, for a script that starts peers: one object per case, with "longest_request" in
// tokens. Throws like run_serving_benchmark().
nlohmann::ordered_json describe_cases(const ServingBenchmarkOptions& options);

using OnServingRun = std::function<void(const ServingCase&, const std::string& server, const ServingRun&)>;

// Runs all cases on all servers. `on_run` is called after each run. Throws std::invalid_argument for wrong options, and
// std::runtime_error for servers that do not start or answer.
ServingReport run_serving_benchmark(const ServingBenchmarkOptions& options, const OnServingRun& on_run = nullptr);

}  // namespace smartkv
