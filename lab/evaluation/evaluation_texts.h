// The texts that `smartkv eval report` measures by default: assets/evaluation/*, built into the program. Nothing is
// fitted to them; calibration has texts of its own.
#pragma once

#include <vector>

#include "engine/embedded_file.h"

namespace smartkv {

std::vector<EmbeddedFile> evaluation_texts();

}  // namespace smartkv
