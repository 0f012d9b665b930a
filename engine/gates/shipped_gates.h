// The gate files that are built into the program: assets/*/gates.safetensors.
#pragma once

#include <vector>

#include "engine/embedded_file.h"

namespace smartkv {

// Returns all of them.
std::vector<EmbeddedFile> shipped_gates();

}  // namespace smartkv
