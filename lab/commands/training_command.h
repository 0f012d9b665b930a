// Shared part of the commands that train: their flags, the run of the training module, its progress and its report.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace smartkv {

// The flags of a command are the options of the training module: --valid-windows sets "valid_windows". The object must
// outlive the parsing of `app`.
class TrainingCommand {
 public:
  explicit TrainingCommand(CLI::App& app) : app_(app) {}

  // Add a flag. Its value is stored in the options, which hold `fallback` until then.
  CLI::Option* text(const std::string& flag, const std::string& help) { return add<std::string>(flag, "", help); }
  CLI::Option* whole(const std::string& flag, int64_t fallback, const std::string& help, int64_t least = 1,
                     int64_t most = int64_t{1} << 20) {
    return add(flag, fallback, help)->check(CLI::Range(least, most))->capture_default_str();
  }
  CLI::Option* positive(const std::string& flag, double fallback, const std::string& help) {
    return add(flag, fallback, help)->check(CLI::PositiveNumber)->capture_default_str();
  }
  template <typename T>
  CLI::Option* add(const std::string& flag, T fallback, const std::string& help) {
    return app_.add_option(flag, (option(flag) = fallback).template get_ref<T&>(), help);
  }
  nlohmann::json& option(const std::string& flag);
  void add_threads_and_json();

  // Runs `training` and prints its report, as JSON with --json, else with `print_table`. Events are passed to
  // `show_progress` only if stderr is a terminal. Returns the exit code. Throws TrainingError.
  int run(const std::string& training, const std::function<void(const nlohmann::json& event)>& show_progress,
          const std::function<void(const nlohmann::ordered_json& report)>& print_table) const;

 private:
  CLI::App& app_;
  nlohmann::json options_;  // its members keep their addresses, because an object is a std::map
  bool json_ = false;
};

}  // namespace smartkv
