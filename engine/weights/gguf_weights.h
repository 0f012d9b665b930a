// A LLaMA in a GGUF file, under Hugging Face names.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/weights/weights.h"

namespace smartkv {

std::unique_ptr<Weights> open_gguf_weights(const std::filesystem::path& path);

}  // namespace smartkv
