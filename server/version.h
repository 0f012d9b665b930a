// The program's version, as --version, /health and system_fingerprint show it.
#pragma once

#include <string_view>

namespace smartkv {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace smartkv
