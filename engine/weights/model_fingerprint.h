// The one definition by which files that belong to a model know it: gates, prefix files, calibration.
#pragma once

#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// Returns 32 hexadecimal digits that stand for a model in all of its quantizations and file formats: GGUF files of any type, a
// folder of safetensors and what `smartkv quantize` writes have the same. It is a hash over
//  - the numbers of layers, heads and KV heads, and the sizes of hidden state, MLP and head;
//  - every norm's weights, rounded to bf16, under their Hugging Face names. No format quantizes norms.
// Names, architecture (a Mistral is a llama in GGUF), context length, RoPE and vocabulary do not count. Models that differ in large
// matrices alone, such as a base model and its merged LoRA, share an identity. AWQ folds its scales into norms, so its files have an
// identity of their own.
// Throws ModelError for a norm that cannot be read.
std::string model_identity(const Weights& weights);

// Returns 32 hexadecimal digits that stand for all that the model computes, bit for bit: its identity, every field of its
// configuration but its name, and every tensor with its type, shape and order of rows. A renamed file keeps its fingerprint;
// the same weights in another format have another one. Reads all weights (about a second per 5 GB in memory).
std::string model_fingerprint(const Weights& weights);

}  // namespace smartkv
