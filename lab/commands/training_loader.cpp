#include "lab/commands/training_loader.h"

#include "engine/program_module.h"

namespace smartkv {
namespace {

constexpr const char* kTarget = "smartkv_training";

struct TrainingRun {
  const std::function<void(const nlohmann::json& event)>& progress;
  nlohmann::ordered_json report;
  std::string error;
};

void receive(void* user, const char* text) {
  TrainingRun& run = *static_cast<TrainingRun*>(user);
  nlohmann::ordered_json event = nlohmann::ordered_json::parse(text);
  const std::string kind = event.at("event");
  if (kind == "report") {
    run.report = std::move(event.at("report"));
  } else if (kind == "error") {
    run.error = event.at("message");
  } else if (run.progress) {
    run.progress(event);
  }
}

}  // namespace

std::filesystem::path training_module_path() { return module_path(kTarget); }

nlohmann::ordered_json run_training(const std::filesystem::path& module, const std::string& command,
                                    const nlohmann::json& options,
                                    const std::function<void(const nlohmann::json& event)>& progress) {
  TrainingRun run{progress, {}, {}};
  try {
    auto* entry = reinterpret_cast<TrainingEntry*>(ProgramModule(module, kTarget, command).find(kTrainingEntry));
    if (entry(command.c_str(), options.dump().c_str(), receive, &run) != 0)
      throw TrainingError(command + ": " + run.error);
  } catch (const ModuleError& error) {
    throw TrainingError(error.what());
  }
  return run.report;
}

}  // namespace smartkv
