// Projections in safetensors as GPTQ and AWQ store them ("quant_method": "gptq", "awq"): "X.qweight", "X.qzeros",
// "X.scales" and, for GPTQ, "X.g_idx" replace "X.weight".
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/weights/packed_integers.h"
#include "engine/weights/projections.h"

namespace smartkv {

struct IntegerConfig {
  PackedIntegers::Layout layout = PackedIntegers::Layout::kGptq;
  int64_t bits = 4;
  int64_t group_size = 128;  // Inputs that share a scale and a zero; -1 for all inputs.
};

// Reads "quantization_config" of config.json. `file` names the source in errors. Throws ModelError naming the key.
IntegerConfig parse_integer_config(const nlohmann::json& quantization, const std::string& file);

// Replaces the parts of each such projection in `tensors` by one tensor "X.weight". If the model has no biases, also
// removes its bias if that is all zeros, because some programs write such biases. Throws ModelError naming the tensor.
void attach_integers(const IntegerConfig& config, const ModelConfig& model, const std::string& file,
                     TensorMap& tensors);

}  // namespace smartkv
