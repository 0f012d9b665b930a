// `smartkv bench --serving`: measures goodput over HTTP at fixed cache memory.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/model/model_options.h"

namespace smartkv {

// Arguments that --serving shares with the other measurements of bench.
struct ServingBenchArguments {
  ModelOptions model;  // only path, dtype, weights and threads are used
  std::string text;
  int repetitions = 0;
  bool json = false;
};

// The part of bench that --serving adds.
struct ServingBench {
  CLI::Option* asked = nullptr;                          // the option --serving, owned by the app
  std::function<int(const ServingBenchArguments&)> run;  // returns the exit code; throws ConfigError
};

// Adds --serving and the options that require it.
ServingBench setup_serving_bench(CLI::App& app);

}  // namespace smartkv
