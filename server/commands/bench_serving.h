// `smartkv bench --serving`: goodput over HTTP at fixed cache memory.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace smartkv {

// What --serving shares with the other measurements of bench.
struct ServingBenchArguments {
  std::string model, text, dtype, weights;
  int threads = 0, repetitions = 0;
  bool json = false;
};

struct ServingBench {
  CLI::Option* asked = nullptr;                          // --serving
  std::function<int(const ServingBenchArguments&)> run;  // returns the exit code; throws ConfigError
};

// Adds --serving and the options that need it.
ServingBench setup_serving_bench(CLI::App& app);

}  // namespace smartkv
