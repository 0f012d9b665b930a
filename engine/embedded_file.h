// Files that CMake builds into the program (smartkv_embed in CMakeLists.txt).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace smartkv {

struct EmbeddedFile {
  std::string_view file;             // path below assets/, such as "calibration/prose.txt"
  std::span<const std::byte> bytes;  // of the file; valid as long as the program runs

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

}  // namespace smartkv
