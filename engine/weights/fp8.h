// 8-bit floating-point weights in safetensors, with one scale per block, as Hugging Face transformers and DeepSeek
// store them ("quant_method": "fp8"). They are expanded when they are read. Activations are not quantized.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/weights/projections.h"

namespace smartkv {

struct Fp8Config {
  int64_t block_rows = 0, block_columns = 0;  // Size of the blocks that share a scale; 0 if a tensor has one scale.
};

// Reads "quantization_config" of config.json. `file` names the source in errors. Throws ModelError naming the key.
Fp8Config parse_fp8_config(const nlohmann::json& quantization, const std::string& file);

// Attaches the scales in "X.weight_scale_inv" to each 8-bit "X.weight", and removes them from `tensors`. Throws
// ModelError.
void attach_fp8_scales(const Fp8Config& config, const std::string& file, TensorMap& tensors);

}  // namespace smartkv
