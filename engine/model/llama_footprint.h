// The memory that a model needs, computed without loading it.
#pragma once

#include <cstdint>

#include "engine/model/llama.h"

namespace smartkv {

// Returns weight_bytes() of the model that load_llama() makes of these weights.
int64_t llama_weight_bytes(const Weights& weights, const ModelOptions& options);

// Returns the bytes of the buffers that a pass of `tokens` tokens uses. Excludes logits and the scratch memory of
// attention.
int64_t llama_pass_bytes(const ModelConfig& config, const ModelOptions& options, int64_t tokens);

}  // namespace smartkv
