// The memory of a model, told without loading it.
#pragma once

#include <cstdint>

#include "engine/model/llama.h"

namespace smartkv {

// What load_llama() makes of these weights: its weight_bytes().
int64_t llama_weight_bytes(const Weights& weights, const LlamaOptions& options);

// Of the buffers that a pass of so many tokens goes through, but for attention's scratch; logits are not among them.
int64_t llama_pass_bytes(const ModelConfig& config, const LlamaOptions& options, int64_t tokens);

}  // namespace smartkv
