// config.json's "quantization_config": how projections in safetensors are quantised.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/weights/projections.h"

namespace smartkv {

// Throws ModelError naming the method or the key that is not supported.
void check_quantization(const nlohmann::json& quantization, const std::string& file);

// Makes the quantised tensors weights of their projections (fp8.h, integer_weights.h). Throws ModelError.
void apply_quantization(const nlohmann::json& quantization, const ModelConfig& model, const std::string& file, TensorMap& tensors);

}  // namespace smartkv
