// Measures how many turns of agents a server takes in a minute with a given amount of cache memory, over HTTP: by
// cache policy, with and without a directory for prefixes, and llama-server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/evaluation/policy_list.h"
#include "lab/serving/agent_trace.h"
#include "lab/serving/agent_workload.h"

namespace smartkv {

// A llama-server to measure beside ours, on the same GGUF file. It gets as many cells of f16 as fit into cell_bytes,
// in equal slots, one for each request that is under way. Its prompt cache comes on top of them.
struct LlamaServerOptions {
  std::filesystem::path program;
  int64_t cell_bytes = 0, cache_ram_bytes = 0;
};

struct AgentBenchmarkOptions {
  std::string binary;  // path of the smartkv program
  std::filesystem::path model;
  std::vector<PolicySpec> policies;
  int64_t kv_cache_bytes = 0;  // memory of each of our servers
  // If set, each policy is also measured with a prefix_cache_dir, in a folder below this one that is removed again.
  std::filesystem::path directory;
  bool only_with_directory = false;
  std::optional<LlamaServerOptions> llama_server;
  std::vector<std::pair<std::string, std::string>> serve_options;  // for each of our servers, as name and value

  AgentWorkload workload;
  std::vector<AgentTurn> trace;  // instead of the workload, unless it is empty
  std::string trace_name;        // for the report
  bool ignore_times = false;
  int64_t shared_tokens = 200;  // system message of sessions that begin with a length
  int64_t at_once = 4;
  // All sessions take one turn more, then another one after a restart of the server. Only with a directory, and not
  // with a trace.
  bool restart = false;
};

struct AgentReport {
  nlohmann::ordered_json conditions = nlohmann::ordered_json::object();
  std::vector<nlohmann::ordered_json> rows;  // one for each server; a value that was not measured is absent

  nlohmann::ordered_json to_json() const;
  static AgentReport from_json(const nlohmann::ordered_json& json);  // throws nlohmann::json::exception
  std::string to_table() const;
  std::string to_markdown() const;
  std::string to_svg() const;
};

// Runs the requests on each server in turn. `on_row` is called after each server with the report so far. Throws
// std::invalid_argument for wrong options, and std::runtime_error for servers that do not start or answer.
AgentReport run_agent_benchmark(const AgentBenchmarkOptions& options,
                                const std::function<void(const AgentReport&)>& on_row = nullptr);

}  // namespace smartkv
