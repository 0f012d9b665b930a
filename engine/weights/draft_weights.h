// The weights of a draft model that `smartkv train-draft` wrote. The file is safetensors and holds a few layers and the
// final norm. Shape, vocabulary, embedding and head rows are those of the target, the model that it drafts for.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "engine/weights/safetensors.h"
#include "engine/weights/weights.h"

namespace smartkv {

// Opens a draft. `file` is a .safetensors file of `smartkv train-draft`, or any model that Weights::open() takes, which
// has an embedding and a head of its own and empty output_tokens(). `target` must outlive the result. Throws
// ModelError, also if the draft was trained for a model of another shape.
std::unique_ptr<Weights> open_draft_weights(const std::filesystem::path& file, const Weights& target);

// Writes a draft for `target` in bf16.
//  - tensors: the `layers` layers under their Hugging Face names, and "model.norm.weight".
//  - output_tokens: the tokens that the draft has head rows for, ascending.
//  - notes: further metadata, such as the training text, the command and the training statistics.
// Throws ModelError.
void write_draft_weights(const std::filesystem::path& file, const ModelConfig& target, int64_t layers,
                         std::span<const int32_t> output_tokens, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& notes);

}  // namespace smartkv
