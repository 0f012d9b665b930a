// Reads the gates of other projects, as NVIDIA's kvpress uses them. Their files do not say which model they are for, so
// only the number of layers and the shapes are checked. A file has tensors for every layer of the model. Those of
// layers with a sliding window are ignored.
#pragma once

#include <filesystem>
#include <memory>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/weights/model_config.h"
#include "engine/weights/safetensors.h"

namespace smartkv {

// Reads a safetensors file of KVzap or Fast KVzip. Returns null if it is neither, going by the names of its tensors:
//  - KVzap, as it is published: "layers.I.0" and "layers.I.2" (an MLP), or "layers.I" (linear), each with ".weight" and
//    ".bias".
//  - Fast KVzip, whose list of state_dicts has become tensors "layers.I.NAME": q_proj.weight, q_proj.bias,
//    k_proj.weight, q_norm.weight, k_norm.weight, k_base and b.
// Throws CacheError if it is one of them, but for another model, or damaged.
std::shared_ptr<const Gate> read_kvpress_gate(const SafetensorsFile& file, const ModelConfig& model);

// Reads the scores of DuoAttention (full_attention_heads.tsv): a line for each layer, with a number for each KV head.
// Scores are cut to [0, 1]. Throws CacheError naming the line, and ModelError.
std::shared_ptr<const Gate> read_duo_attention(const std::filesystem::path& file, const ModelConfig& model);

}  // namespace smartkv
