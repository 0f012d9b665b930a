// The native LlamaBackend: matrix products and norms with the kernels of this project. It is batch-invariant.
#pragma once

#include <functional>
#include <memory>

#include "engine/model/llama_backend.h"
#include "engine/model/llama_weights.h"
#include "engine/weights/weights.h"
#include "kernels/attention.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Packs the weights, which are not needed afterwards. type: type of the activations; f32 if `storage` is f32, else
// bf16. `pool` must outlive the backend. progress: called with the packed fraction, 0 to 1; may be null. lock: locks
// the packed weights in memory. Throws ModelError.
std::unique_ptr<LlamaBackend> load_native_backend(const Weights& weights, LlamaStorage storage, kernels::KvType type,
                                                  ThreadPool& pool, const std::function<void(double)>& progress,
                                                  bool lock = false);

}  // namespace smartkv
