// Projections in safetensors as GPTQ and AWQ leave them ("quant_method": "gptq", "awq"): "X.qweight", "X.qzeros", "X.scales"
// and, of GPTQ, "X.g_idx" in the place of "X.weight".
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
  int64_t group_size = 128;  // inputs that share scale and zero; -1: all
};

// `quantization`: config.json's "quantization_config". Throws ModelError naming the key.
IntegerConfig parse_integer_config(const nlohmann::json& quantization, const std::string& file);

// Gives each projection that is stored so the name "X.weight"; its parts leave `tensors`, as do biases of it that are all
// zeros where the model has none, which some programs write. Throws ModelError naming the tensor.
void attach_integers(const IntegerConfig& config, const ModelConfig& model, const std::string& file, TensorMap& tensors);

}  // namespace smartkv
