// Runs the training commands, which live in a shared module beside the program (engine/program_module.h).
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace smartkv {

// Training could not start or failed. The message says why.
class TrainingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The type of the C function that the module exports as kTrainingEntry. It calls `event` with JSON texts: progress
// events, and at the end one of
//  - {"event": "report", "report": {...}}, then returns 0;
//  - {"event": "error", "message": "..."}, then returns 1.
using TrainingEntry = int(const char* command, const char* options, void (*event)(void* user, const char* json),
                          void* user);
inline constexpr const char* kTrainingEntry = "smartkv_train";

// Returns the path of libsmartkv_training.so in the program's folder.
std::filesystem::path training_module_path();

// Runs a training command of the module, such as "train-gate", and returns its report. `progress` receives the progress
// events (lab/training/training_commands.h). Throws TrainingError.
nlohmann::ordered_json run_training(const std::filesystem::path& module, const std::string& command,
                                    const nlohmann::json& options,
                                    const std::function<void(const nlohmann::json& event)>& progress = nullptr);

}  // namespace smartkv
