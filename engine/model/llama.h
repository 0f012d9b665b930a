// LLaMA (Touvron et al. 2023) on the kernels of this project: RMSNorm, grouped-query attention with RoPE over a
// sequence cache, SwiGLU; and its relatives (engine/weights/architecture.h), as their ModelConfig says.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cache/sequence_cache.h"
#include "engine/model/model.h"
#include "engine/weights/weights.h"
#include "kernels/thread_pool.h"

namespace smartkv {

struct LlamaOptions {
  std::string dtype = "auto";    // auto | bf16 | f32: activations and KV cache; auto: bf16
  std::string weights = "auto";  // auto | bf16 | f32 | int8 | int4: storage of the matrices; auto: as dtype
  int64_t context_length = 0;    // 0: the model's own
  // none | linear | dynamic | yarn: of a context longer than the model's own, instead of the scaling that the model has.
  std::string rope_scaling = "none";
};

// Packs the weights; `weights` is not needed afterwards. Throws ModelError, also when the context is longer than the
// model's sliding window: up to there, attention over the window is attention over everything. `progress` gets 0..1.
std::unique_ptr<Model> load_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress = nullptr);

// The caches that load_llama's model reads and writes under these options.
CacheShape llama_cache_shape(const ModelConfig& config, const LlamaOptions& options);

}  // namespace smartkv
