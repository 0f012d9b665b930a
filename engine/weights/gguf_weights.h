// The weights of a GGUF file, under Hugging Face names.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/weights/weights.h"

namespace smartkv {

// Opens a GGUF file. Does not check that all tensors are present; Weights::open() does. Throws ModelError.
std::unique_ptr<Weights> open_gguf_weights(const std::filesystem::path& path);

}  // namespace smartkv
