#include "engine/model/torch_backend.h"

#include "engine/program_module.h"

namespace smartkv {
namespace {

constexpr const char* kTarget = "smartkv_torch_backend";

// Returns the function that the module exports as `entry`. The module stays loaded.
template <typename Entry>
Entry* open_module(const std::filesystem::path& file, const char* entry) {
  try {
    const ProgramModule module(file, kTarget, "backend: torch");
    const std::string interface = reinterpret_cast<TorchBackendInterface*>(module.find(kTorchBackendInterface))();
    if (interface != SMARTKV_BACKEND_INTERFACE) {
      throw ModelError("backend: torch: " + file.string() + " was not built with this program: expected interface " +
                       SMARTKV_BACKEND_INTERFACE + ", found " + interface + "; build the target " + kTarget);
    }
    return reinterpret_cast<Entry*>(module.find(entry));
  } catch (const ModuleError& error) {
    throw ModelError(error.what());
  }
}

}  // namespace

std::filesystem::path torch_backend_path() { return module_path(kTarget); }

std::unique_ptr<LlamaBackend> load_torch_backend(const std::filesystem::path& module, const Weights& weights,
                                                 ProductType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress, RankGroup* ranks,
                                                 const GraphLog& graphs) {
  const auto entry = open_module<TorchBackendEntry>(module, kTorchBackendEntry);
  return std::unique_ptr<LlamaBackend>(entry(weights, type, device, threads, progress, ranks, graphs));
}

std::unique_ptr<RankGroup> join_torch_ranks(const std::filesystem::path& module, const RankPlace& place,
                                            const std::string& device) {
  return std::unique_ptr<RankGroup>(open_module<TorchRanksEntry>(module, kTorchRanksEntry)(place, device));
}

}  // namespace smartkv
