// Shared modules beside the program: LibTorch takes 0.2 s and 100 MB to start, so what needs it is loaded when asked for.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace smartkv {

// A module that is not there or cannot be loaded; the message says who wants it, and how to get it.
class ModuleError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// lib<target>.so in the program's folder.
std::filesystem::path module_path(const std::string& target);

class ProgramModule {
 public:
  // Loads the module, which stays: LibTorch's threads and registries outlive its use. `target`: CMake's name of it;
  // `wanted_by` begins the message. Throws ModuleError.
  ProgramModule(const std::filesystem::path& file, const std::string& target, const std::string& wanted_by);
  // What it exports under this name. Throws ModuleError.
  void* find(const std::string& name) const;

 private:
  std::filesystem::path file_;
  std::string wanted_by_;
  void* library_;
};

}  // namespace smartkv
