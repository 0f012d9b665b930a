#include "lab/serving/agent_benchmark.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>

#include "engine/weights/padded_weights.h"
#include "engine/weights/weights.h"
#include "lab/serving/agent_run.h"
#include "lab/serving/server_process.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;
using Turns = std::span<const AgentTurn>;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kCellGranule = 256;  // llama.cpp rounds a slot's context to a multiple of it
constexpr auto kLlamaStartTimeout = std::chrono::minutes(5);
constexpr auto kLlamaStartInterval = std::chrono::milliseconds(50);

// The requests, in phases. The later ones are empty if they are not asked for.
struct AgentPlan {
  std::vector<AgentTurn> turns;
  // The first turn of all sessions, which is not measured as a turn; the measured turns; one more turn of each session
  // before a restart of the server, and one after it.
  Turns start, measured, before_restart, after_restart;
  int64_t longest = 0;              // tokens of the longest conversation
  int64_t longest_measured = 0;     // the same without the turns around a restart
  int64_t f16_bytes_per_token = 0;  // of the model's KV cache
};

AgentPlan make_plan(const AgentBenchmarkOptions& options) {
  AgentPlan plan;
  AgentWorkload workload = options.workload;
  if (options.restart) workload.turns += 2;
  plan.turns = options.trace.empty() ? synthetic_turns(workload) : options.trace;
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.model);
  const ModelConfig& config = weights->config();
  plan.f16_bytes_per_token = 4 * config.n_full_layers() * config.n_kv_heads * padded_config(config).head_dim;
  write_texts(*tokenizer, options.shared_tokens, &plan.turns);
  Turns rest = plan.turns;
  const auto take = [&](int64_t turns) {
    const auto n = options.trace.empty() ? static_cast<size_t>(turns * workload.sessions) : 0;
    const Turns taken = rest.first(n);
    rest = rest.subspan(n);
    return taken;
  };
  plan.start = take(1);
  plan.measured = options.trace.empty() ? take(options.workload.turns - 1) : rest;
  if (options.restart) {
    plan.before_restart = take(1);
    plan.after_restart = take(1);
  }
  plan.longest = longest_conversation(*tokenizer, plan.turns);
  const auto end = plan.measured.data() + plan.measured.size() - plan.turns.data();
  plan.longest_measured = longest_conversation(*tokenizer, {plan.turns.begin(), plan.turns.begin() + end});
  return plan;
}

// A folder that is removed with the object.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent) {
    std::error_code error;
    std::filesystem::create_directories(parent, error);
    std::string name = (parent / "bench-agents-XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) {
      throw std::invalid_argument(
          parent.string() + ": expected a directory to write in: " + (error ? error.message() : std::strerror(errno)));
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A server to measure.
struct AgentTarget {
  Json row;  // how the report describes it
  bool llama = false;
  PolicySpec policy;
  bool directory = false;
};

std::vector<AgentTarget> agent_targets(const AgentBenchmarkOptions& options) {
  std::vector<AgentTarget> targets;
  for (const PolicySpec& policy : options.policies) {
    for (const bool directory : {false, true}) {
      if (directory ? options.directory.empty() : options.only_with_directory) continue;
      targets.push_back({.row = {{"server", policy.label + (directory ? ", directory" : "")},
                                 {"policy", policy.label},
                                 {"directory", directory},
                                 {"kv_cache_bytes", options.kv_cache_bytes}},
                         .llama = false,
                         .policy = policy,
                         .directory = directory});
    }
  }
  if (options.llama_server) {
    targets.push_back({.row = {{"server", "llama-server"},
                               {"kv_cache_bytes", options.llama_server->cell_bytes},
                               {"cache_ram_bytes", options.llama_server->cache_ram_bytes}},
                       .llama = true,
                       .policy = {},
                       .directory = false});
  }
  return targets;
}

std::vector<std::string> agent_serve_command(const AgentBenchmarkOptions& options, const AgentPlan& plan,
                                             const PolicySpec& spec, const std::filesystem::path& directory) {
  std::vector<std::string> command = {options.binary, "serve"};
  const auto add = [&](const std::string& name, const std::string& value) { add_option(name, value, &command); };
  const nlohmann::json policy = spec.for_context(plan.longest_measured);
  add("model", options.model);
  add("port", "0");
  add("log_level", "warning");
  add("max_sequences", std::to_string(options.at_once));
  add("kv_cache", policy.is_string() ? policy.get<std::string>() : policy.dump());
  add("kv_cache_bytes", std::to_string(options.kv_cache_bytes));
  if (!directory.empty()) add("prefix_cache_dir", directory);
  for (const auto& [name, value] : options.serve_options) add(name, value);
  return command;
}

int64_t threads_of(const AgentBenchmarkOptions& options) {
  const auto given = std::ranges::find(options.serve_options, "threads", &std::pair<std::string, std::string>::first);
  const int64_t threads = given == options.serve_options.end() ? 0 : std::stoll(given->second);
  return threads > 0 ? threads : std::thread::hardware_concurrency();
}

// Throws std::invalid_argument if a slot does not hold the longest conversation.
std::vector<std::string> llama_command(const AgentBenchmarkOptions& options, const AgentPlan& plan) {
  const LlamaServerOptions& llama = *options.llama_server;
  const int64_t cells = llama.cell_bytes / plan.f16_bytes_per_token;
  const int64_t slot = cells / options.at_once / kCellGranule * kCellGranule;
  if (slot < plan.longest_measured) {
    throw std::invalid_argument(std::to_string(options.at_once) + " slots in " + std::to_string(llama.cell_bytes) +
                                " bytes hold " + std::to_string(slot) +
                                " tokens each, but the longest conversation has about " +
                                std::to_string(plan.longest_measured));
  }
  return {llama.program,
          "-m",
          options.model,
          "--host",
          "127.0.0.1",
          "-t",
          std::to_string(threads_of(options)),
          "-c",
          std::to_string(slot * options.at_once),
          "--parallel",
          std::to_string(options.at_once),
          "--no-kv-unified",
          "-fa",
          "on",
          "--cache-ram",
          std::to_string(llama.cache_ram_bytes / kMiB)};
}

// Starts llama-server and waits until it has loaded the model.
std::unique_ptr<ServerProcess> start_llama(std::vector<std::string> command) {
  const std::string port = std::to_string(free_port());
  command.insert(command.end(), {"--port", port});
  auto server = std::make_unique<ServerProcess>(command, "http://127.0.0.1:" + port);
  const auto deadline = std::chrono::steady_clock::now() + kLlamaStartTimeout;
  for (;;) {
    try {
      LoadClient(server->url(), {});
      return server;
    } catch (const std::runtime_error& error) {
      if (server->running() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kLlamaStartInterval);
        continue;
      }
      std::string text;
      for (const std::string& word : command) text += (text.empty() ? "" : " ") + word;
      throw std::runtime_error(std::string(server->running() ? error.what() : "the program ended") + ": " + text);
    }
  }
}

void add_measured(const AgentSummary& summary, Json* row) {
  (*row)["turns"] = summary.turns;
  (*row)["failed"] = summary.failed;
  if (!summary.failure.empty()) (*row)["failure"] = summary.failure;
  if (summary.failed == summary.turns) return;  // there is nothing to report
  row->update({{"wall_s", summary.wall_s},
               {"turns_per_min", summary.turns_per_min},
               {"first_token_p50_s", summary.first_token_p50_s},
               {"first_token_p95_s", summary.first_token_p95_s},
               {"prompt_tokens", summary.prompt_tokens},
               {"found", summary.found()}});
}

// Returns the share of prompt tokens that was found in the second turn of all sessions, in the third one, and so on.
Json found_by_turn(const std::vector<AgentTurnResult>& results, Turns measured, int64_t sessions) {
  Json shares = Json::array();
  for (size_t first = 0; first < measured.size(); first += static_cast<size_t>(sessions)) {
    std::vector<AgentTurnResult> turn;
    for (const AgentTurnResult& result : results) {
      const auto place = static_cast<size_t>(result.turn - measured.data());
      if (place >= first && place < first + static_cast<size_t>(sessions)) turn.push_back(result);
    }
    shares.push_back(summarize_agents(turn).found());
  }
  return shares;
}

// Drives one server through the phases.
class AgentMeasurement {
 public:
  AgentMeasurement(const AgentBenchmarkOptions& options, const AgentPlan& plan, AgentTarget target)
      : options_(options), plan_(plan), target_(std::move(target)) {
    if (target_.directory) folder_.emplace(options.directory);
    run_options_ = {.at_once = options.at_once,
                    .ignore_times = options.ignore_times,
                    .length_field = target_.llama ? "ignore_eos" : "min_tokens"};
  }

  // Returns the row of the server. If it fails, the row says so.
  Json measure() {
    try {
      run();
    } catch (const std::runtime_error& error) {
      target_.row["failure"] = error.what();
    }
    return target_.row;
  }

 private:
  void run() {
    start();
    const std::optional<int64_t> written = server_->written_bytes();
    warm_up();
    Json& row = target_.row;
    if (!plan_.start.empty()) row["start_s"] = phase(plan_.start, "start").wall_s;
    const std::vector<AgentTurnResult> results = requests(plan_.measured);
    add_measured(summarize_agents(results), &row);
    if (options_.trace.empty()) {
      row["found_by_turn"] = found_by_turn(results, plan_.measured, options_.workload.sessions);
    }
    if (target_.directory && !plan_.after_restart.empty()) {
      row["before_restart_s"] = phase(plan_.before_restart, "before the restart").wall_s;
    }
    if (const int64_t held = held_bytes(); held > 0) row["kv_bytes"] = held;
    server_->stop();
    if (target_.directory && written && server_->written_bytes()) {
      row["written_bytes"] = *server_->written_bytes() - *written;
    }
    if (row.contains("before_restart_s")) restart();
  }

  void start() {
    server_ = target_.llama
                  ? start_llama(llama_command(options_, plan_))
                  : std::make_unique<ServerProcess>(agent_serve_command(
                        options_, plan_, target_.policy, folder_ ? folder_->path() : std::filesystem::path()));
    client_.emplace(server_->url(), LoadOptions{});
  }

  // Sends a short request, which touches every weight.
  void warm_up() const {
    const AgentTurn turn{.session = "warm-up",
                         .time_s = {},
                         .think_s = {},
                         .keep = {},
                         .messages = {{"user", "Hello"}},
                         .tokens = 0,
                         .output_tokens = 4};
    AgentConversations conversations;
    const auto results = run_agents(*client_, {&turn, 1}, run_options_, &conversations);
    const std::string& failure = results.front().outcome.failure;
    if (!failure.empty()) throw std::runtime_error(label() + ": the warm-up request failed: " + failure);
  }

  std::vector<AgentTurnResult> requests(Turns turns) {
    std::vector<AgentTurnResult> results = run_agents(*client_, turns, run_options_, &conversations_);
    for (const AgentTurnResult& result : results) {
      if (result.outcome.kv_bytes > 0) kv_bytes_[result.turn->session] = result.outcome.kv_bytes;
    }
    return results;
  }

  // Runs a phase in which no request may fail.
  AgentSummary phase(Turns turns, const std::string& name) {
    const AgentSummary summary = summarize_agents(requests(turns));
    if (summary.failed > 0) {
      throw std::runtime_error(label() + ": " + std::to_string(summary.failed) + " requests failed in phase \"" + name +
                               "\": " + summary.failure);
    }
    return summary;
  }

  void restart() {
    start();
    const AgentSummary after = phase(plan_.after_restart, "after the restart");
    Json& row = target_.row;
    row["after_restart_s"] = after.wall_s;
    row["after_restart_ratio"] = after.wall_s / row.at("before_restart_s").get<double>();
    row["found_after_restart"] = after.found();
  }

  // Returns the bytes of all sessions' caches at the end of their last request, without sharing.
  int64_t held_bytes() const {
    int64_t sum = 0;
    for (const auto& [session, bytes] : kv_bytes_) sum += bytes;
    return sum;
  }

  std::string label() const { return target_.row.at("server").get<std::string>(); }

  const AgentBenchmarkOptions& options_;
  const AgentPlan& plan_;
  AgentTarget target_;
  AgentRunOptions run_options_;
  std::optional<ScratchFolder> folder_;
  std::unique_ptr<ServerProcess> server_;
  std::optional<LoadClient> client_;
  AgentConversations conversations_;
  std::map<std::string, int64_t> kv_bytes_;  // of a session's last request
};

Json conditions_of(const AgentBenchmarkOptions& options, const AgentPlan& plan) {
  Json conditions = {{"model", options.model.filename().string()}, {"at_once", options.at_once}};
  if (options.trace.empty()) {
    const AgentWorkload& workload = options.workload;
    conditions.update({{"sessions", workload.sessions},
                       {"turns", workload.turns},
                       {"start_tokens", workload.start_tokens},
                       {"turn_tokens", workload.turn_tokens},
                       {"reply_tokens", workload.reply_tokens},
                       {"shared_tokens", options.shared_tokens}});
  } else {
    std::set<std::string> sessions;
    for (const AgentTurn& turn : plan.turns) sessions.insert(turn.session);
    conditions.update({{"trace", options.trace_name}, {"sessions", sessions.size()}, {"requests", plan.turns.size()}});
  }
  conditions["serve"] = Json::object();
  for (const auto& [name, value] : options.serve_options) conditions["serve"][name] = value;
  return conditions;
}

}  // namespace

AgentReport run_agent_benchmark(const AgentBenchmarkOptions& options,
                                const std::function<void(const AgentReport&)>& on_row) {
  const AgentPlan plan = make_plan(options);
  if (options.llama_server) llama_command(options, plan);  // fails now, not after the other servers
  AgentReport report;
  report.conditions = conditions_of(options, plan);
  for (AgentTarget& target : agent_targets(options)) {
    report.rows.push_back(AgentMeasurement(options, plan, std::move(target)).measure());
    if (on_row) on_row(report);
  }
  return report;
}

}  // namespace smartkv
