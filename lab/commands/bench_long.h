// `smartkv bench --long`: runs a long text through each cache policy.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/model/model_options.h"

namespace smartkv {

// Arguments that --long shares with the other measurements of bench.
struct LongBenchArguments {
  ModelOptions model;
  std::string text;
  bool json = false;
};

// The part of bench that --long adds.
struct LongBench {
  CLI::Option* asked = nullptr;                       // the option --long, owned by the app
  std::function<int(const LongBenchArguments&)> run;  // returns the exit code; throws ConfigError
};

// Adds --long and the options that require it.
LongBench setup_long_bench(CLI::App& app);

}  // namespace smartkv
