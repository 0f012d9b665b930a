// LLaMA (Touvron et al. 2023) and its relatives (engine/weights/architecture.h): RMSNorm, grouped-query attention with
// RoPE over a sequence cache, SwiGLU. The ModelConfig says how a relative differs. Caches and attention use this
// project's kernels; a LlamaBackend computes matrix products and norms.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cache/sequence_cache.h"
#include "engine/model/model.h"
#include "engine/model/model_options.h"
#include "engine/weights/weights.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Returns the storage that the options select for these weights: file, bf16, f16, f32, int8 or int4. Never auto.
std::string stored_weights(const ModelOptions& options, const Weights& weights);

// Packs the weights and returns the model. `weights` is not needed afterwards; `pool` must outlive the model.
//  - progress: called with the loaded fraction, 0 to 1; may be null.
//  - kv_backend: holds the caches of the model. If it is null, they are on the device of the options.
// If all layers have a sliding window that is not shorter than the context, the model has no window, because the window
// hides nothing. Throws ModelError.
std::unique_ptr<Model> load_llama(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress = nullptr,
                                  std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// Makes the backend of a model from the weights as they are served (engine/weights/padded_weights.h). `type` is the
// type of the activations. Called after make_llama() has checked the options that it reads itself.
using BackendLoader = std::function<std::unique_ptr<LlamaBackend>(const Weights& weights, kernels::KvType type)>;
// Returns a model over a backend that the caller provides. kv_backend: holds the caches of the model; the CPU's if it
// is null.
std::unique_ptr<Model> make_llama(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                  const BackendLoader& load, std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// Returns the shape that policies see of the caches of a model of load_llama() under these options: that of the layers
// with full attention, of which there may be none.
CacheShape llama_cache_shape(const ModelConfig& config, const ModelOptions& options);

}  // namespace smartkv
