// A LLaMA's products and norms on the kernels of this project, batch-invariant.
#pragma once

#include <functional>
#include <memory>

#include "engine/model/llama_backend.h"
#include "engine/model/llama_weights.h"
#include "engine/weights/weights.h"
#include "kernels/attention.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// type: of activations, f32 where storage is of f32, else bf16. Throws ModelError.
std::unique_ptr<LlamaBackend> load_native_backend(const Weights& weights, LlamaStorage storage, kernels::KvType type,
                                                  ThreadPool& pool, const std::function<void(double)>& progress);

}  // namespace smartkv
