#include "engine/model/torch_backend.h"

#include "engine/program_module.h"

namespace smartkv {
namespace {

constexpr const char* kTarget = "smartkv_torch_backend";

TorchBackendEntry* open_module(const std::filesystem::path& file) {
  try {
    const ProgramModule module(file, kTarget, "backend: torch");
    const std::string interface = reinterpret_cast<TorchBackendInterface*>(module.find(kTorchBackendInterface))();
    if (interface != SMARTKV_BACKEND_INTERFACE) {
      throw ModelError("backend: torch: " + file.string() + " was not built with this program: expected interface " +
                       SMARTKV_BACKEND_INTERFACE + ", found " + interface + "; build the target " + kTarget);
    }
    return reinterpret_cast<TorchBackendEntry*>(module.find(kTorchBackendEntry));
  } catch (const ModuleError& error) {
    throw ModelError(error.what());
  }
}

}  // namespace

std::filesystem::path torch_backend_path() { return module_path(kTarget); }

std::unique_ptr<LlamaBackend> load_torch_backend(const std::filesystem::path& module, const Weights& weights,
                                                 kernels::KvType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress) {
  return std::unique_ptr<LlamaBackend>(open_module(module)(weights, type, device, threads, progress));
}

}  // namespace smartkv
