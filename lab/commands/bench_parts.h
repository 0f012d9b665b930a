// The parts of `smartkv bench` that have files of their own: --serving measures goodput over HTTP at fixed cache
// memory, and --long runs a long text through each cache policy.
#pragma once

#include <functional>
#include <string>

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

}  // namespace smartkv
