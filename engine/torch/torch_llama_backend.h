// The products and norms of a LLaMA that serves, by LibTorch. Rows do not come out the same bits in every batch: which code
// multiplies depends on their number.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/model/llama_backend.h"
#include "engine/torch/pass_graphs.h"
#include "engine/weights/weights.h"

namespace smartkv {

class TorchRankGroup;

// type: of matrices and activations; the residual stream, norms and the head are f32. Of f16, what passes 65,504 is infinite.
// device: as LibTorch names it. threads: of
// LibTorch, in this process. ranks: those whose parts of the weights add up to the model, and outlive the result; all but rank 0 have
// no head. null: it computes alone. graphs: of small passes, without ranks; its rows are then where the caches are, on a CPU,
// too. null: there are none. Throws ModelError, also for a device that is not there.
std::unique_ptr<LlamaBackend> make_torch_backend(const Weights& weights, ProductType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress = nullptr, TorchRankGroup* ranks = nullptr,
                                                 std::unique_ptr<PassGraphs> graphs = nullptr);

}  // namespace smartkv
