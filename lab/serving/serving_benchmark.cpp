#include "lab/serving/serving_benchmark.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "engine/weights/weights.h"
#include "lab/serving/server_process.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

// After so long the server is certainly computing the long prompt of the fairness case, which takes seconds.
constexpr auto kAheadTime = std::chrono::milliseconds(100);
constexpr const char* kPeakGauge = "smartkv:kv_bytes_used";
constexpr const char* kPreemptions = "vllm:num_preemptions_total";

std::optional<double> preemptions(const LoadClient& client) {
  const std::optional<std::string> text = client.metrics();
  return text ? metric_value(*text, kPreemptions) : std::nullopt;
}

// A server to measure: one that is started for each run, or a peer.
struct Target {
  std::string label;
  PolicySpec policy;
  std::pair<std::string, std::string> variant;  // option of a variant; empty if it is none
  std::string url;                              // address of a peer; empty for a server to start
};

std::vector<Target> targets_of(const ServingBenchmarkOptions& options, std::vector<size_t>* base) {
  std::vector<Target> targets;
  const auto add = [&](Target target, size_t of) {
    targets.push_back(std::move(target));
    base->push_back(of);
  };
  for (const PolicySpec& policy : options.policies) {
    const size_t own = targets.size();
    add({.label = policy.label, .policy = policy, .variant = {}, .url = {}}, own);
    for (const auto& variant : options.variants) {
      const std::string label = policy.label + ", " + variant.first + "=" + variant.second;
      add({.label = label, .policy = policy, .variant = variant, .url = {}}, own);
    }
  }
  for (const ServingPeer& peer : options.peers) {
    add({.label = peer.name, .policy = {}, .variant = {}, .url = peer.url}, targets.size());
  }
  return targets;
}

std::vector<std::string> serve_command(const ServingBenchmarkOptions& options, const ServingCase& one,
                                       const Target& target) {
  std::vector<std::string> command = {options.binary, "serve"};
  const auto add = [&](const std::string& name, const std::string& value) { add_option(name, value, &command); };
  const nlohmann::json policy = target.policy.for_context(one.context());
  add("model", options.model);
  add("port", "0");
  add("log_level", "warning");
  add("max_sequences", std::to_string(one.requests + (one.fairness() ? 1 : 0)));
  add("max_queue", std::to_string(one.requests));
  add("kv_cache", policy.is_string() ? policy.get<std::string>() : policy.dump());
  add("kv_cache_bytes", std::to_string(one.kv_cache_bytes));
  for (const auto& [name, value] : options.serve_options) add(name, value);
  if (!target.variant.first.empty()) add(target.variant.first, target.variant.second);
  return command;
}

ServingRun run_target(const ServingBenchmarkOptions& options, const ServingCase& one, const Target& target,
                      const PromptSource& prompts, int repetition) {
  if (!target.url.empty()) return run_serving_case({target.url, options.load}, one, prompts, repetition);
  const ServerProcess server(serve_command(options, one, target));
  return run_serving_case({server.url(), options.load}, one, prompts, repetition);
}

// Measures each request alone, then behind a long prompt that arrived shortly before it.
ServingRun run_fairness(const LoadClient& client, const ServingCase& one, const PromptSource& prompts, int repetition) {
  const std::vector<ServingRequest> requests = prompts.requests(one, repetition);
  const std::vector<ServingRequest> ahead = prompts.ahead(one, repetition);
  std::vector<RequestOutcome> alone, behind, first;
  for (const ServingRequest& request : requests) alone.push_back(client.send(request));
  for (size_t i = 0; i < requests.size(); ++i) {
    RequestOutcome long_outcome;
    {
      const std::jthread sender([&] { long_outcome = client.send(ahead[i]); });
      std::this_thread::sleep_for(kAheadTime);
      // The prompt is reversed, because the server would find the original in its prefix cache.
      behind.push_back(client.send({{requests[i].prompt.rbegin(), requests[i].prompt.rend()}, one.output_tokens}));
    }
    first.push_back(long_outcome);
  }
  ServingRun run = summarize(behind);
  const ServingRun before = summarize(alone), long_ones = summarize(first);
  for (const ServingRun* other : {&before, &long_ones}) {
    run.requests += other->requests;
    run.failed += other->failed;
    run.retries += other->retries;
    if (run.failure.empty()) run.failure = other->failure;
  }
  run.wall_s = run.tokens_per_s = 0;  // requests run one at a time, so there is no rate
  run.alone_s = before.first_token_p50_s;
  run.delay = run.alone_s > 0 ? run.first_token_p50_s / run.alone_s : 0;
  return run;
}

// Throws now, and not after hours, if the requests of a case cannot be made.
void check_cases(const ServingBenchmarkOptions& options, const PromptSource& prompts) {
  for (const ServingCase& one : options.cases) {
    prompts.requests(one, options.repetitions - 1);
    if (one.fairness()) prompts.ahead(one, options.repetitions - 1);
  }
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  if (std::filesystem::is_directory(file) || !stream || !(text << stream.rdbuf())) {
    throw std::invalid_argument(file.string() + ": cannot be read, or is empty");
  }
  return text.str();
}

// The source of prompts, with the model's tokenizer that it needs.
struct Prompts {
  explicit Prompts(const ServingBenchmarkOptions& options)
      : weights(Weights::open(options.model)),
        tokenizer(load_tokenizer(*weights, options.model)),
        source(read_text(options.text), *tokenizer) {
    check_cases(options, source);
  }

  std::unique_ptr<Weights> weights;
  std::unique_ptr<Tokenizer> tokenizer;
  PromptSource source;
};

}  // namespace

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = p * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - std::floor(place));
}

ServingRun summarize(std::span<const RequestOutcome> outcomes) {
  ServingRun run;
  std::vector<double> first_tokens, per_token;
  int64_t tokens = 0;
  run.requests = static_cast<int64_t>(outcomes.size());
  for (const RequestOutcome& outcome : outcomes) {
    run.retries += outcome.retries;
    if (!outcome.completed()) {
      ++run.failed;
      if (run.failure.empty()) run.failure = outcome.failure;
      continue;
    }
    tokens += outcome.output_tokens;
    run.prompt_tokens += outcome.prompt_tokens;
    run.cached_tokens += outcome.cached_tokens;
    run.wall_s = std::max(run.wall_s, outcome.last_token_s);
    first_tokens.push_back(outcome.first_token_s);
    if (outcome.output_tokens > 1) per_token.push_back(outcome.per_token_s());
  }
  run.tokens_per_s = run.wall_s > 0 ? static_cast<double>(tokens) / run.wall_s : 0;
  run.first_token_p50_s = percentile(first_tokens, 0.5);
  run.first_token_p99_s = percentile(first_tokens, 0.99);
  run.per_token_p50_s = percentile(per_token, 0.5);
  return run;
}

ServingRun run_serving_case(const LoadClient& client, const ServingCase& one, const PromptSource& prompts,
                            int repetition) {
  const RequestOutcome warm_up = client.send(prompts.warm_up());
  if (!warm_up.completed()) {
    throw std::runtime_error("case " + one.name + ": the warm-up request failed: " + warm_up.failure);
  }
  const std::optional<double> preempted = preemptions(client);
  PeakGauge peak(client, kPeakGauge);
  ServingRun run = one.fairness() ? run_fairness(client, one, prompts, repetition)
                                  : summarize(client.send_all(prompts.requests(one, repetition)));
  run.kv_bytes_peak = peak.stop();
  if (preempted) run.preemptions = preemptions(client).value_or(*preempted) - *preempted;
  return run;
}

Json describe_cases(const ServingBenchmarkOptions& options) {
  const Prompts prompts(options);
  Json cases = Json::array();
  for (const ServingCase& one : options.cases) {
    cases.push_back({{"name", one.name},
                     {"what", one.what},
                     {"requests", one.requests},
                     {"longest_request", prompts.source.longest(one, options.repetitions)},
                     {"fairness", one.fairness()},
                     {"kv_cache_bytes", one.kv_cache_bytes}});
  }
  return cases;
}

ServingReport run_serving_benchmark(const ServingBenchmarkOptions& options, const OnServingRun& on_run) {
  const Prompts prompts(options);
  std::vector<size_t> base;
  const std::vector<Target> targets = targets_of(options, &base);
  std::vector<std::string> labels;
  for (const Target& target : targets) labels.push_back(target.label);

  ServingReport report;
  report.conditions = {{"model", options.model.filename().string()},
                       {"text", options.text.filename().string()},
                       {"repetitions", options.repetitions},
                       {"serve", Json::object()}};
  for (const auto& [name, value] : options.serve_options) report.conditions["serve"][name] = value;
  for (const ServingCase& one : options.cases) {
    std::vector<std::vector<ServingRun>> runs(targets.size());
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      for (size_t i = 0; i < targets.size(); ++i) {
        runs[i].push_back(run_target(options, one, targets[i], prompts.source, repetition));
        if (on_run) on_run(one, labels[i], runs[i].back());
      }
    }
    for (Json& row : serving_rows(one, labels, base, runs)) report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace smartkv
