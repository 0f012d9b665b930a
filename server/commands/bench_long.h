// `smartkv bench --long`: a long text through each cache policy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace smartkv {

// What --long shares with the other measurements of bench.
struct LongBenchArguments {
  std::string model, text, dtype, weights;
  int threads = 0;
  std::vector<std::string> gates;  // NAME=FILE
  bool json = false;
};

struct LongBench {
  CLI::Option* asked = nullptr;                       // --long
  std::function<int(const LongBenchArguments&)> run;  // returns the exit code; throws ConfigError
};

// Adds --long and the options that need it.
LongBench setup_long_bench(CLI::App& app);

}  // namespace smartkv
