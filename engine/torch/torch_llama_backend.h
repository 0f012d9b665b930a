// The backend that computes the products and norms of a LLaMA with LibTorch. It is not batch-invariant: LibTorch
// chooses its product code by the number of rows, so the bits of a row depend on the batch.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/model/llama_backend.h"
#include "engine/torch/pass_graphs.h"
#include "engine/weights/weights.h"

namespace smartkv {

class TorchRankGroup;

// Makes the backend. Throws ModelError for unusable weights, and std::runtime_error for errors of LibTorch, such as a
// device that does not exist.
//  - `type` is that of matrices and activations. The residual stream, norms and the head are f32. In f16, values beyond
//    65,504 become infinite.
//  - `device` is named as LibTorch names it.
//  - `threads` is the number of LibTorch's threads in this process.
//  - `ranks` are the tensor-parallel ranks whose parts of the weights make up the model. They outlive the result. Only
//    rank 0 has a head. Null if this process computes alone.
//  - `graphs` run small passes; null for none. With graphs, rows live where the caches do (device_rows()), even on a
//    CPU. REQUIRES: not together with `ranks`.
std::unique_ptr<LlamaBackend> make_torch_backend(const Weights& weights, ProductType type, const std::string& device,
                                                 int threads, const std::function<void(double)>& progress = nullptr,
                                                 TorchRankGroup* ranks = nullptr,
                                                 std::unique_ptr<PassGraphs> graphs = nullptr);

}  // namespace smartkv
