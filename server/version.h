// The program's version, as --version, /health and system_fingerprint show it. CMakeLists.txt defines it.
#pragma once

#include <string_view>

namespace smartkv {

inline constexpr std::string_view kVersion = SMARTKV_VERSION;

}  // namespace smartkv
