// The weights of a Hugging Face folder: config.json with safetensors, in one file or several, or model.gguf of
// `smartkv quantize`.
#pragma once

#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "engine/weights/weights.h"

namespace smartkv {

// Opens a folder. Does not check that all tensors are present; Weights::open() does. Throws ModelError.
std::unique_ptr<Weights> open_hf_weights(const std::filesystem::path& folder);

// Reads a config.json. `file` names the source in errors. Throws ModelError naming the key, also for a key that is
// neither supported nor known to be harmless.
ModelConfig parse_hf_config(const nlohmann::json& config, const std::string& file);

}  // namespace smartkv
