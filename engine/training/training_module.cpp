#include "engine/training/training_module.h"

#include <dlfcn.h>

#include <cstdlib>

namespace smartkv {
namespace {

struct Run {
  const std::function<void(const nlohmann::json& event)>& progress;
  nlohmann::ordered_json report;
  std::string error;
};

void receive(void* user, const char* text) {
  Run& run = *static_cast<Run*>(user);
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

std::filesystem::path training_module_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libsmartkv_training.so";
}

nlohmann::ordered_json run_training(const std::filesystem::path& module, const std::string& command,
                                    const nlohmann::json& options,
                                    const std::function<void(const nlohmann::json& event)>& progress) {
  if (!std::filesystem::exists(module)) {
    throw TrainingError(command + " needs " + module.string() +
                        ", which is not there: build it with LibTorch (the target smartkv_training; "
                        "scripts/build_training.sh installs LibTorch and builds it) and keep it beside the program");
  }
  // On a busy machine threads that spin at OpenMP's barriers, as they do by default, cost several times the work
  // itself.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  // Never closed: LibTorch's threads and registries outlive the call.
  void* library = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw TrainingError(command + ": " + dlerror());
  auto* entry = reinterpret_cast<TrainingEntry*>(dlsym(library, kTrainingEntry));
  if (entry == nullptr) throw TrainingError(module.string() + " exports no " + kTrainingEntry);
  Run run{progress, {}, {}};
  if (entry(command.c_str(), options.dump().c_str(), receive, &run) != 0)
    throw TrainingError(command + ": " + run.error);
  return run.report;
}

}  // namespace smartkv
