// "quantization_config" of config.json, which says how the projections in safetensors are quantized.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/weights/projections.h"

namespace smartkv {

// Throws ModelError naming the method or the key that is not supported. `file` names the source in errors.
void check_quantization(const nlohmann::json& quantization, const std::string& file);

// Replaces the quantized tensors in `tensors` by the weights of their projections (fp8.h, integer_weights.h). Throws
// ModelError.
void apply_quantization(const nlohmann::json& quantization, const ModelConfig& model, const std::string& file,
                        TensorMap& tensors);

}  // namespace smartkv
