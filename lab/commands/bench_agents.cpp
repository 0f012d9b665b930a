#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "lab/commands/bench_parts.h"
#include "lab/serving/agent_benchmark.h"
#include "lab/serving/agent_log.h"
#include "lab/serving/server_process.h"
#include "server/commands/command.h"
#include "server/commands/hub_models.h"
#include "server/commands/number_flag.h"
#include "server/commands/options.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

struct AgentArguments {
  AgentBenchmarkOptions options;
  std::string model, policies = "full,balanced,tiny", memory = "256MiB", trace, log, out;
  std::string llama_server, llama_cells = "240MB", llama_cache_ram = "256MiB";
  std::vector<std::string> serve_options, saved;
  std::string json, plot;
  CLI::Option* at_once = nullptr;
  bool markdown = false;
};

constexpr int64_t kMostAtOnce = 1024;

constexpr const char* kAgentExamples =
    R"(Each session is a conversation. A turn sends the whole conversation, with the replies so far and a new message.
Sessions take turns: the one that has waited longest goes next. Turns per minute, the time to first token (TTFT) and the
share of prompt tokens found in the cache count from the second turn on.
Examples:
  smartkv bench agents --model model.gguf
  smartkv bench agents --model model.gguf --policies full,balanced --memory 128MiB --dir /var/tmp --restart
  smartkv bench agents --model model.gguf --policies balanced --llama-server /usr/bin/llama-server --json agents.json
  smartkv bench agents --convert log.jsonl --out trace.jsonl
  smartkv bench agents --model model.gguf --trace trace.jsonl
  smartkv bench agents --saved agents.json --markdown --plot agents.svg)";

void write_whole_file(const std::string& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary);
  if (!(stream << text).flush()) throw std::runtime_error(path + ": cannot be written");
}

std::string read_whole_file(const std::string& flag, const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (std::filesystem::is_directory(path) || !stream || !(text << stream.rdbuf())) {
    throw ConfigError(flag + ": " + path + ": expected a file that can be read and is not empty");
  }
  return text.str();
}

int convert_log(const AgentArguments& arguments) {
  std::string trace;
  try {
    for (const AgentTurn& turn : convert_agent_log(read_whole_file("--convert", arguments.log))) {
      trace += trace_line(turn) + "\n";
    }
  } catch (const TraceError& error) {
    throw ConfigError("--convert: " + arguments.log + ":\n" + error.what());
  }
  write_whole_file(arguments.out, trace);
  return kOk;
}

// Reads the trace. Its sessions do not wait for each other unless --at-once says so.
void read_agent_trace(AgentArguments& arguments) {
  AgentBenchmarkOptions& options = arguments.options;
  try {
    options.trace = parse_agent_trace(read_whole_file("--trace", arguments.trace));
  } catch (const TraceError& error) {
    throw ConfigError("--trace: " + arguments.trace + ":\n" + error.what());
  }
  options.trace_name = std::filesystem::path(arguments.trace).filename().string();
  if (arguments.at_once->count() > 0) return;
  std::set<std::string> sessions;
  for (const AgentTurn& turn : options.trace) sessions.insert(turn.session);
  options.at_once = std::min<int64_t>(std::ssize(sessions), kMostAtOnce);
}

void print_agents(const AgentReport& report, const AgentArguments& arguments) {
  std::cout << (arguments.markdown ? report.to_markdown() : report.to_table());
  if (!arguments.plot.empty()) write_whole_file(arguments.plot, report.to_svg());
}

// Joins the reports of several runs: their rows, and the conditions of the first.
AgentReport read_agent_reports(const std::vector<std::string>& files) {
  AgentReport all;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    try {
      AgentReport one = AgentReport::from_json(Json::parse(stream));
      if (all.rows.empty()) all.conditions = one.conditions;
      all.rows.insert(all.rows.end(), one.rows.begin(), one.rows.end());
    } catch (const nlohmann::json::exception& error) {
      throw ConfigError("--saved: " + file + ": expected the output of bench agents --json: " + error.what());
    }
  }
  return all;
}

void show_agents_row(const Json& row) {
  std::string line = row.at("server").get<std::string>() + ":";
  if (row.contains("turns_per_min")) {
    char text[128];
    std::snprintf(text, sizeof text, " %.1f turns/min, TTFT p95 %.2f s, found %.0f%%",
                  row.at("turns_per_min").get<double>(), row.at("first_token_p95_s").get<double>(),
                  100 * row.at("found").get<double>());
    line += text;
  }
  if (row.contains("failure")) line += " failed: " + row.at("failure").get<std::string>();
  std::fprintf(stderr, "%s\n", line.c_str());  // even if stderr is not a terminal: a server may take many minutes
}

void read_agent_arguments(AgentArguments& arguments) {
  AgentBenchmarkOptions& options = arguments.options;
  if (arguments.model.empty()) throw ConfigError("--model is required");
  options.binary = own_binary();
  options.model = find_model(arguments.model);
  options.kv_cache_bytes = read_size("--memory", arguments.memory);
  try {
    options.policies = parse_policy_list(arguments.policies, FullReference::kWhereListed);
  } catch (const CacheError& error) {
    throw ConfigError(std::string("--policies: ") + error.what());
  }
  if (!arguments.llama_server.empty()) {
    options.llama_server = {.program = arguments.llama_server,
                            .cell_bytes = read_size("--llama-cells", arguments.llama_cells),
                            .cache_ram_bytes = read_size("--llama-cache-ram", arguments.llama_cache_ram)};
  }
  if (!arguments.trace.empty()) read_agent_trace(arguments);
  for (const std::string& text : arguments.serve_options) {
    options.serve_options.push_back(read_serve_option("--serve-option", text));
  }
}

int run_agents_bench(AgentArguments& arguments) {
  if (!arguments.saved.empty()) {
    print_agents(read_agent_reports(arguments.saved), arguments);
    return kOk;
  }
  if (!arguments.log.empty()) return convert_log(arguments);
  read_agent_arguments(arguments);
  try {
    const AgentReport report = run_agent_benchmark(arguments.options, [&](const AgentReport& so_far) {
      show_agents_row(so_far.rows.back());
      if (!arguments.json.empty()) write_whole_file(arguments.json, so_far.to_json().dump(2) + "\n");
    });
    print_agents(report, arguments);
    const auto failed = [](const Json& row) { return row.contains("failure"); };
    return std::ranges::any_of(report.rows, failed) ? kRuntimeError : kOk;
  } catch (const std::invalid_argument& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace

std::pair<CLI::App*, std::function<int()>> setup_agents_bench(CLI::App& bench) {
  auto arguments = std::make_shared<AgentArguments>();
  AgentBenchmarkOptions& options = arguments->options;
  AgentWorkload& workload = options.workload;
  CLI::App* app = bench.add_subcommand("agents", "Measure many conversations of agents that take turns on one server");
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str();
  };
  option("--model", arguments->model, "GGUF file, Hugging Face folder or name (ORG/NAME; required)");
  option("--policies", arguments->policies, "Cache policies to measure in turn: names, JSON objects, NAME@SHARE");
  option("--memory", arguments->memory, "Memory for all KV caches of a server (kv_cache_bytes)");
  auto* directory = option("--dir", options.directory,
                           "Measure each policy also with a prefix_cache_dir, in a folder below this one that is "
                           "removed again");
  app->add_flag("--only-dir", options.only_with_directory, "With --dir: leave out the servers without one")
      ->needs(directory);
  auto* trace = option("--trace", arguments->trace,
                       "Send the requests of this trace (docs/use/agent_benchmark.md) instead of sessions of equal "
                       "length");
  app->add_flag("--ignore-times", options.ignore_times, "With --trace: send each request when its turn comes")
      ->needs(trace);
  const auto length = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    add_number_flag(*app, name, value, help, least, kMostTraceTokens)->excludes(trace);
  };
  length("--sessions", workload.sessions, "Number of sessions", 1);
  length("--turns", workload.turns, "Turns of each session", 2);
  length("--start-tokens", workload.start_tokens, "Tokens of the first turn of a session", 1);
  length("--turn-tokens", workload.turn_tokens, "Tokens that each later turn adds", 1);
  length("--reply-tokens", workload.reply_tokens, "Tokens of each reply", 1);
  add_number_flag(*app, "--shared-tokens", options.shared_tokens,
                  "Tokens of the system message, which all sessions share and which is part of --start-tokens",
                  int64_t{1}, kMostTraceTokens);
  arguments->at_once = add_number_flag(*app, "--at-once", options.at_once,
                                       "Requests that are under way at the same time; with --trace by default as many "
                                       "as it has sessions",
                                       int64_t{1}, kMostAtOnce);
  app->add_flag("--restart", options.restart,
                "With --dir: then restart the server, and compare the time of a turn of all sessions before and after")
      ->needs(directory)
      ->excludes(trace);
  auto* llama =
      option("--llama-server", arguments->llama_server, "Measure this llama-server, too, on the same GGUF file");
  option("--llama-cells", arguments->llama_cells, "With --llama-server: memory of its f16 cells")->needs(llama);
  option("--llama-cache-ram", arguments->llama_cache_ram, "With --llama-server: memory of its prompt cache")
      ->needs(llama);
  option("--serve-option", arguments->serve_options, "NAME=VALUE, an option of serve for each of our servers")
      ->expected(1)
      ->take_all();
  option("--json", arguments->json, "Write the report to this file after each server");
  option("--plot", arguments->plot, "Write a picture of the report to this SVG file");
  app->add_flag("--markdown", arguments->markdown, "Print the table in Markdown");
  option("--saved", arguments->saved, "Show the reports in these files, written by --json, instead of measuring")
      ->expected(1, -1);
  auto* log = option("--convert", arguments->log,
                     "Convert this log of OpenAI or Anthropic requests (JSON Lines) to a trace, instead of measuring");
  auto* out = option("--out", arguments->out, "With --convert: file to write the trace to")->needs(log);
  log->needs(out);
  app->footer(kAgentExamples);
  return {app, [arguments] { return run_agents_bench(*arguments); }};
}

}  // namespace smartkv
