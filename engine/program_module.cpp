#include "engine/program_module.h"

#include <dlfcn.h>

#include <cstdlib>

namespace smartkv {

std::filesystem::path module_path(const std::string& target) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("lib" + target + ".so");
}

ProgramModule::ProgramModule(const std::filesystem::path& file, const std::string& target, const std::string& wanted_by)
    : file_(file), wanted_by_(wanted_by) {
  if (!std::filesystem::exists(file)) {
    throw ModuleError(wanted_by + " needs " + file.string() +
                      ", which does not exist: build it with LibTorch (target " + target +
                      "; scripts/build_torch.sh installs LibTorch and builds it) and keep it beside the program");
  }
  // By default OpenMP's threads spin at barriers. On a busy machine that costs several times the work itself.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw ModuleError(wanted_by + ": " + dlerror());
}

void* ProgramModule::find(const std::string& name) const {
  void* found = dlsym(library_, name.c_str());
  if (found == nullptr) throw ModuleError(wanted_by_ + ": " + file_.string() + " does not export " + name);
  return found;
}

}  // namespace smartkv
