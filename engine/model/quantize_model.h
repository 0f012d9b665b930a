// Model files whose matrices are integers already, so that loading fits nothing.
#pragma once

#include <filesystem>
#include <functional>

#include "kernels/linear.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Writes the model `in`, a path as Weights::open takes it, with the integers that load_llama makes of it under weights of
// `type` (kInt4 or kInt8): Q4_1 and Q8_0, the head and the embedding always Q8_0. Tensors that load_llama keeps as they are are
// copied. So the model in `out` computes, bit for bit, what `in` does with these weights, which "auto" now stands for. The
// exception are padded shapes (engine/weights/padded_weights.h), whose matrices are fitted once more when they are loaded.
//
// The result has the form of `in`. A GGUF file becomes a GGUF file with the same keys and names of tensors. A Hugging Face folder
// becomes a folder: the weights in model.gguf under Hugging Face names, config.json without "quantization_config", and copies of
// generation_config.json and the tokenizer's files. It is written under a temporary name beside `out` and renamed at the end.
//
// Throws ModelError, and leaves nothing behind, if
//  - `out` exists;
//  - the tensors would not take less memory than those of `in`, or a quantized tensor would be fitted to no more bits than it
//    has, unless `force` is true;
//  - the rows of a matrix hold no whole groups of 32, or integers of 8 bits have another zero than Q8_0.
void quantize_model(const std::filesystem::path& in, const std::filesystem::path& out, kernels::WeightType type, ThreadPool& pool,
                    bool force = false, const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
