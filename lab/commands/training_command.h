// Shared part of the commands that train: runs the training module, shows its progress, and prints its report.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace smartkv {

// Runs `training` with `options` and prints its report, as JSON or with `print_table`. Events are passed to
// `show_progress` only if stderr is a terminal. Returns the exit code. Throws TrainingError.
int run_training_command(const std::string& training, const nlohmann::json& options, bool json,
                         const std::function<void(const nlohmann::json& event)>& show_progress,
                         const std::function<void(const nlohmann::ordered_json& report)>& print_table);

}  // namespace smartkv
