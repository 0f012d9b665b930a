// Shared modules beside the program. LibTorch takes 0.2 s and 100 MB to start, so the code that needs it is in modules
// that are loaded on demand.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace smartkv {

// A module that is missing or cannot be loaded. The message says what needs the module and how to get it.
class ModuleError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns the path of lib<target>.so in the program's folder.
std::filesystem::path module_path(const std::string& target);

// A loaded module.
class ProgramModule {
 public:
  // Loads the module. It is never unloaded, because LibTorch's threads and registries outlive this object. `target` is
  // the module's CMake target. `wanted_by`, the part of the program that needs the module, begins each error message.
  // Throws ModuleError.
  ProgramModule(const std::filesystem::path& file, const std::string& target, const std::string& wanted_by);
  // Returns the symbol that the module exports under this name. Throws ModuleError if there is none.
  void* find(const std::string& name) const;

 private:
  std::filesystem::path file_;
  std::string wanted_by_;
  void* library_;
};

}  // namespace smartkv
