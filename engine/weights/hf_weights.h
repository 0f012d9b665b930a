// A LLaMA in a Hugging Face folder: config.json with safetensors, whole or sharded.
#pragma once

#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "engine/weights/weights.h"

namespace smartkv {

std::unique_ptr<Weights> open_hf_weights(const std::filesystem::path& folder);

// `file` names the source in errors.
ModelConfig parse_hf_config(const nlohmann::json& config, const std::string& file);

}  // namespace smartkv
