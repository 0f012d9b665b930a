#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "cache/sequence_cache.h"
#include "lab/commands/bench_parts.h"
#include "lab/serving/server_process.h"
#include "lab/serving/serving_benchmark.h"
#include "server/commands/command.h"
#include "server/commands/options.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefaultText = "assets/evaluation/prose.txt";  // path in the repository

struct BenchServingArguments {
  std::string cases = "a,b,c,d,e,f,g", policies = "full,balanced,compact,gated_eviction@0.25", plot, kv_cache_bytes;
  std::vector<std::string> serve_options, variants, peers, peer_names, saved;
  std::optional<int64_t> requests;
  bool asked = false, no_retry = false, print_cases = false;
};

std::vector<ServingCase> cases_of(const BenchServingArguments& arguments) {
  std::vector<ServingCase> cases;
  try {
    cases = parse_serving_cases(arguments.cases);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(std::string("--cases: ") + error.what());
  }
  std::optional<int64_t> bytes;
  if (!arguments.kv_cache_bytes.empty()) bytes = read_size("--kv-cache-bytes", arguments.kv_cache_bytes);
  for (ServingCase& one : cases) {
    if (arguments.requests) one.requests = *arguments.requests;
    if (bytes && !one.fairness()) one.kv_cache_bytes = *bytes;
  }
  return cases;
}

std::vector<ServingPeer> peers_of(const BenchServingArguments& arguments) {
  if (arguments.peers.size() != arguments.peer_names.size()) {
    throw ConfigError("--peer-name: expected one for each --peer (" + std::to_string(arguments.peers.size()) +
                      "), found " + std::to_string(arguments.peer_names.size()));
  }
  std::vector<ServingPeer> peers;
  for (size_t i = 0; i < arguments.peers.size(); ++i) peers.push_back({arguments.peer_names[i], arguments.peers[i]});
  return peers;
}

ServingBenchmarkOptions options_of(const BenchServingArguments& arguments, const SharedBenchArguments& shared) {
  ServingBenchmarkOptions options;
  options.binary = own_binary();
  options.model = shared.model.path;
  options.text = shared.text.empty() ? kDefaultText : shared.text;
  options.cases = cases_of(arguments);
  options.peers = peers_of(arguments);
  options.repetitions = shared.repetitions;
  options.load.retry = !arguments.no_retry;
  try {
    options.policies = parse_policy_list(arguments.policies);
  } catch (const CacheError& error) {
    throw ConfigError(std::string("--policies: ") + error.what());
  }
  options.serve_options = {{"dtype", std::string(name(shared.model.dtype))},
                           {"weights", std::string(name(shared.model.weights))},
                           {"threads", std::to_string(shared.model.threads)}};
  for (const std::string& text : arguments.serve_options) {
    options.serve_options.push_back(read_serve_option("--serve-option", text));
  }
  for (const std::string& text : arguments.variants) {
    options.variants.push_back(read_serve_option("--variant", text));
  }
  return options;
}

// Joins the reports of several runs: their rows, and the conditions of the first.
ServingReport read_saved(const std::vector<std::string>& files) {
  ServingReport all;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    try {
      ServingReport one = ServingReport::from_json(Json::parse(stream));
      if (all.rows.empty()) all.conditions = one.conditions;
      all.rows.insert(all.rows.end(), one.rows.begin(), one.rows.end());
    } catch (const nlohmann::json::exception& error) {
      throw ConfigError("--saved: " + file + ": expected the output of bench --serving --json: " + error.what());
    }
  }
  return all;
}

void print(const ServingReport& report, const BenchServingArguments& arguments, bool json) {
  std::cout << (json ? report.to_json().dump(2) + "\n" : report.to_table());
  if (arguments.plot.empty()) return;
  std::ofstream stream(arguments.plot, std::ios::binary);
  if (!(stream << report.to_svg()).flush()) throw std::runtime_error(arguments.plot + ": cannot be written");
}

int run(const BenchServingArguments& arguments, const SharedBenchArguments& shared) {
  if (!arguments.saved.empty()) {
    print(read_saved(arguments.saved), arguments, shared.json);
    return kOk;
  }
  if (shared.model.path.empty()) throw ConfigError("--model is required");
  const ServingBenchmarkOptions options = options_of(arguments, shared);
  try {
    if (arguments.print_cases) {
      std::cout << describe_cases(options).dump(2) << '\n';
      return kOk;
    }
    // Printed even if stderr is not a terminal: a case may take an hour, and a run may be stopped early.
    const auto show = [](const ServingCase& one, const std::string& server, const ServingRun& run) {
      std::fprintf(stderr, "%s  %-24s %8.1f tokens/s  %6.1f s  first token %.3f s  failed %ld\n", one.name.c_str(),
                   server.c_str(), run.tokens_per_s, run.wall_s, run.first_token_p50_s, static_cast<long>(run.failed));
    };
    print(run_serving_benchmark(options, show), arguments, shared.json);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(error.what());
  }
  return kOk;
}

}  // namespace

// The option is checked here, so that a wrong one does not fail after hours.
std::pair<std::string, std::string> read_serve_option(const std::string& flag, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos) throw ConfigError(flag + ": expected name=value, found \"" + text + "\"");
  std::string name = text.substr(0, equals);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto& table = option_table();
  const auto found = std::ranges::find(table, name, &Option::name);
  if (found == table.end()) throw ConfigError(flag + ": serve has no option \"" + name + "\"");
  ServerOptions checked;
  const std::string value = text.substr(equals + 1);
  set_option_text(*found, value, flag, &checked);
  return {name, value};
}

int64_t read_size(const std::string& flag, const std::string& text) {
  try {
    return parse_bytes(text);
  } catch (const std::invalid_argument&) {
    throw ConfigError(flag + ": expected a size such as \"96MB\", found \"" + text + "\"");
  }
}

BenchPart setup_serving_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchServingArguments>();
  BenchPart bench;
  bench.asked = app.add_flag("--serving", arguments->asked,
                             "Measure goodput over HTTP at fixed cache memory, against policy full");
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, std::string("With --serving: ") + help)->needs(bench.asked);
  };
  option("--cases", arguments->cases, "list of cases from a to g")->capture_default_str();
  option("--policies", arguments->policies,
         "cache policies, as for eval: names, JSON objects, NAME@SHARE. full is always measured")
      ->capture_default_str();
  option("--kv-cache-bytes", arguments->kv_cache_bytes,
         "cache memory of the server, such as \"96MB\", instead of the case's own. Case g has no limit");
  option("--requests", arguments->requests, "number of requests of each case, instead of its own")
      ->check(CLI::Range(1, 10000));
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* help) {
    option(name, values, help)->expected(1)->take_all();
  };
  list("--serve-option", arguments->serve_options, "NAME=VALUE, an option of serve for every server");
  list("--variant", arguments->variants, "NAME=VALUE, an option of serve. Each policy runs with and without it");
  list("--peer", arguments->peers, "address of a running OpenAI-compatible server with the same tokenizer");
  list("--peer-name", arguments->peer_names, "name of the peer in the table");
  option("--plot", arguments->plot, "SVG file for a bar chart of goodput by case and server");
  option("--saved", arguments->saved, "show the reports in these files, printed by --json, instead of measuring")
      ->expected(1, -1);
  app.add_flag("--no-retry", arguments->no_retry,
               "With --serving: count a refused request (429) as failed instead of retrying it")
      ->needs(bench.asked);
  app.add_flag("--print-cases", arguments->print_cases,
               "With --serving: print a description of the cases' requests as JSON and exit")
      ->needs(bench.asked);
  bench.run = [arguments](const SharedBenchArguments& shared) { return run(*arguments, shared); };
  return bench;
}

}  // namespace smartkv
