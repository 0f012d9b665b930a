// Writes model files whose matrices are integers already, so that loading needs to fit nothing.
#pragma once

#include <filesystem>
#include <functional>

#include "kernels/linear.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Writes the model `in`, a path as Weights::open takes it, with the integers that load_llama makes of it under weights
// of `type` (kInt4 or kInt8): Q4_1 or Q8_0. The head and the embedding are always Q8_0. Tensors that load_llama keeps
// unchanged are copied. So the model in `out`, loaded with weights "auto", computes bit for bit the same as `in` with
// weights of `type`. Padded shapes (engine/weights/padded_weights.h) are the exception: their matrices are fitted a
// second time when they are loaded.
//
// The result has the form of `in`. A GGUF file becomes a GGUF file with the same keys and names of tensors. A Hugging
// Face folder becomes a folder: the weights in model.gguf under Hugging Face names, config.json without
// "quantization_config", and copies of generation_config.json and the tokenizer's files. It is written under a
// temporary name beside `out` and renamed at the end.
//
// Throws ModelError, and leaves nothing behind, if
//  - `out` exists;
//  - the tensors would not take less memory than those of `in`, and `force` is false;
//  - a quantized tensor would be fitted to a format that takes no more memory, and so lose precision again, and `force`
//    is false;
//  - the rows of a matrix do not hold whole groups of 32, or 8-bit integers have a zero other than Q8_0's.
void quantize_model(const std::filesystem::path& in, const std::filesystem::path& out, kernels::WeightType type,
                    ThreadPool& pool, bool force = false, const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
