// The products and norms of a LLaMA that serves, by LibTorch. Rows do not come out the same bits in every batch: which code
// multiplies depends on their number.
#pragma once

#include <functional>
#include <memory>

#include "engine/model/llama_backend.h"
#include "engine/weights/weights.h"
#include "kernels/attention.h"

namespace smartkv {

// type: of matrices and activations; the residual stream, norms and the head are f32. threads: of LibTorch, in this process. Throws
// ModelError.
std::unique_ptr<LlamaBackend> make_torch_backend(const Weights& weights, kernels::KvType type, int threads,
                                                 const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
