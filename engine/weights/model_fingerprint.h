// The two hashes by which files that belong to a model (gates, prefix files, calibration) recognize it.
#pragma once

#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// Returns 32 hexadecimal digits that identify a model in all of its quantizations and file formats. GGUF files of any
// type, a folder of safetensors and the files that `smartkv quantize` writes have the same identity. It is a hash over
//  - the numbers of layers, heads and KV heads, and the sizes of the hidden state, the MLP and an attention head;
//  - every norm's weights, rounded to bf16, under their Hugging Face names. No format quantizes norms.
// Names, architecture (GGUF files call a Mistral "llama"), context length, RoPE and vocabulary do not count. Models
// that differ only in their large matrices, such as a base model and its merged LoRA, share an identity. AWQ folds its
// scales into the norms, so its files have another identity.
// Throws ModelError if a norm cannot be read.
std::string model_identity(const Weights& weights);

// Returns 32 hexadecimal digits that identify the model's results bit for bit. It is a hash over the identity, every
// field of the configuration except the name, and every tensor with its type, shape and order of rows. A renamed file
// keeps its fingerprint. The same weights in another format have another fingerprint. Reads all weights, which takes
// about a second per 5 GB if they are in memory.
std::string model_fingerprint(const Weights& weights);

}  // namespace smartkv
