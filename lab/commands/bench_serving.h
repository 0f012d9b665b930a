// `smartkv bench --serving`: measures goodput over HTTP at fixed cache memory.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace smartkv {

// Arguments that --serving shares with the other measurements of bench.
struct ServingBenchArguments {
  std::string model, text, dtype, weights;
  int threads = 0, repetitions = 0;
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
