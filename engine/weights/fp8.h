// 8-bit floating-point weights in safetensors, with a scale per block, as Hugging Face transformers and DeepSeek store
// them ("quant_method": "fp8"). They are expanded when they are read; activations are not quantised.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/weights/projections.h"

namespace smartkv {

struct Fp8Config {
  int64_t block_rows = 0, block_columns = 0;  // that share a scale; 0: the whole tensor shares one
};

// `quantization`: config.json's "quantization_config". Throws ModelError naming the key.
Fp8Config parse_fp8_config(const nlohmann::json& quantization, const std::string& file);

// Gives each 8-bit "X.weight" the scales of "X.weight_scale_inv", which leaves `tensors`. Throws ModelError.
void attach_fp8_scales(const Fp8Config& config, const std::string& file, TensorMap& tensors);

}  // namespace smartkv
