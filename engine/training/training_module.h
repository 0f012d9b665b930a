// The training commands live in a shared module beside the program (engine/program_module.h).
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace smartkv {

// Training that cannot start or failed; the message says why.
class TrainingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the module exports as kTrainingEntry, in C's terms. `event` gets JSON texts: progress on the way, and at the end
// {"event": "report", "report": {...}} (returns 0) or {"event": "error", "message": "..."} (returns 1).
using TrainingEntry = int(const char* command, const char* options, void (*event)(void* user, const char* json),
                          void* user);
inline constexpr const char* kTrainingEntry = "smartkv_train";

// libsmartkv_training.so in the program's folder.
std::filesystem::path training_module_path();

// Runs a training command ("train-gate") of the module; returns its report. Throws TrainingError.
nlohmann::ordered_json run_training(const std::filesystem::path& module, const std::string& command,
                                    const nlohmann::json& options,
                                    const std::function<void(const nlohmann::json& event)>& progress = nullptr);

}  // namespace smartkv
