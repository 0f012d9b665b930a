// The weights of a draft that `smartkv train-draft` wrote. The file holds what is its own: a few layers and the final
// norm, as safetensors. Shape, tokens, embedding and the head's rows are those of the model that it drafts for.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "engine/weights/safetensors.h"
#include "engine/weights/weights.h"

namespace smartkv {

// `file`: a draft, or any model that Weights::open takes. `target` outlives the result. The result's output_tokens()
// are empty for a model that stands alone. Throws ModelError, also when the draft is for a model of another shape.
std::unique_ptr<Weights> open_draft_weights(const std::filesystem::path& file, const Weights& target);

// Writes a draft for `target` in bf16, with `layers` layers under Hugging Face names and "model.norm.weight". `notes`
// joins the metadata: the training text, the command, the figures. Throws ModelError.
void write_draft_weights(const std::filesystem::path& file, const ModelConfig& target, int64_t layers,
                         std::span<const int32_t> output_tokens, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& notes);

}  // namespace smartkv
