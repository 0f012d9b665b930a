// The texts that a model is measured with, built into the program: assets/calibration/*.txt, from which its tables
// come, and assets/frontier/*.txt, which show what policies do with them.
#pragma once

#include <vector>

#include "engine/embedded_file.h"

namespace smartkv {

std::vector<EmbeddedFile> calibration_texts();  // all of them

}  // namespace smartkv
