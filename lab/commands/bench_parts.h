// The parts of `smartkv bench` that have files of their own: --serving measures goodput over HTTP at fixed cache
// memory, --long runs a long text through each cache policy, and `bench agents` measures turns of agents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "engine/model/model_options.h"

namespace smartkv {

// Arguments that these parts share with the other measurements of bench.
struct SharedBenchArguments {
  ModelOptions model;  // --serving uses only path, dtype, weights and threads
  std::string text;
  int repetitions = 0;  // used by --serving
  bool json = false;
};

struct BenchPart {
  CLI::Option* asked = nullptr;                         // the option --serving or --long, owned by the app
  std::function<int(const SharedBenchArguments&)> run;  // returns the exit code; throws ConfigError
};

// Add --serving or --long, and the options that require it.
BenchPart setup_serving_bench(CLI::App& app);
BenchPart setup_long_bench(CLI::App& app);

// Adds the command `agents`. Returns the function to run if it was given.
std::pair<CLI::App*, std::function<int()>> setup_agents_bench(CLI::App& bench);

// Parses "name=value", an option of serve, and checks it. Throws ConfigError naming the flag.
std::pair<std::string, std::string> read_serve_option(const std::string& flag, const std::string& text);

// Parses a size such as "96MB". Throws ConfigError naming the flag.
int64_t read_size(const std::string& flag, const std::string& text);

}  // namespace smartkv
