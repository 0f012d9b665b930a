// Measures a model as `smartkv calibrate` does.
#pragma once

#include <filesystem>

namespace smartkv {

// Measures the model by its answers, with the weights as f32 if they fit into memory, unless the result is known.
// Returns the file that holds the result; empty if it could not be written. Shows the progress on a terminal. threads:
// 0 for every core available to this process. Throws ModelError.
std::filesystem::path calibrate_by_answers(const std::filesystem::path& model, int threads, bool force = false);

}  // namespace smartkv
