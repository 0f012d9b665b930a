// Model files whose matrices are integers already, so that loading fits nothing.
#pragma once

#include <filesystem>
#include <functional>

#include "kernels/linear.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Writes the model `in`, a path as Weights::open takes it, with the integers that load_llama makes of it under weights of
// `type` (kInt4 or kInt8): Q4_1 and Q8_0, the head and the embedding always Q8_0; what load_llama keeps as it is stays as it
// is. So the model in `out` computes, bit for bit, what `in` does with the same weights, which "auto" now stands for; but for
// shapes that are padded (engine/weights/padded_weights.h), whose matrices loading fits once more.
// Of a GGUF file `out` is a GGUF file, with the same keys and tensors' names. Of a Hugging Face folder it is a folder: the
// weights in model.gguf under Hugging Face names, config.json without "quantization_config", and copies of the tokenizer's files
// and generation_config.json. Throws ModelError: `out` exists, a matrix's rows hold no whole groups of 32, integers of 8 bits
// have another zero than Q8_0. What was written until then is removed.
void quantize_model(const std::filesystem::path& in, const std::filesystem::path& out, kernels::WeightType type,
                    ThreadPool& pool, const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
