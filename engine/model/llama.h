// LLaMA (Touvron et al. 2023) and its relatives (engine/weights/architecture.h): RMSNorm, grouped-query attention with
// RoPE over a sequence cache, SwiGLU. The ModelConfig says how a relative differs. Caches and attention use this
// project's kernels; a LlamaBackend computes matrix products and norms.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cache/sequence_cache.h"
#include "engine/model/llama_backend.h"
#include "engine/model/model.h"
#include "engine/weights/weights.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// How a model is loaded and served.
struct LlamaOptions {
  // Type of the activations: auto, bf16, f16 or f32.
  //  - auto is f32 if `weights` is f32, else bf16.
  //  - f16 needs backend torch.
  // The KV cache is f32 with f32 activations, else bf16.
  std::string dtype = "auto";
  // Storage of the matrices: auto, file, bf16, f32, int8 or int4.
  //  - file keeps the integers of a quantized file, and stores in bf16 the matrices that the file has as floats.
  //  - auto is f32 with dtype f32, and the type of the activations with backend torch. Otherwise it is the storage that
  //    `smartkv quantize` made the file for. For files of other programs it is `file` if they are quantized, else bf16.
  // Backend torch takes auto, bf16 and f32 only (auto only, if dtype is f16), and expands all integers.
  std::string weights = "auto";
  int64_t context_length = 0;    // Tokens; 0 for the context length of the model.
  // none, linear, dynamic or yarn. Scales RoPE for a context longer than the model's own, and replaces the scaling that
  // the model has. Ignored unless the factor is above 1.
  std::string rope_scaling = "none";
  double rope_factor = 0;  // Factor of rope_scaling; 0 for context_length divided by the model's own context length.
  std::string backend = "native";  // native: this project's kernels; torch: LibTorch, with 16- and 32-bit weights only
  // cpu or cuda:N. Products, caches and attention are there; cuda:N needs backend torch.
  std::string device = "cpu";
  // auto, on or off: capture the work of small passes between two attention calls in CUDA graphs, and replay them. auto
  // is on for a GPU, and off for tensor-parallel models, which have no graphs.
  std::string cuda_graphs = "auto";
  // With weights `file`: floats become 4-bit integers instead of bf16. Draft models use this.
  bool int4_floats = false;
};

// Returns one message for each option that has an invalid value or does not go with another option. Each names its
// option. Needs no model.
std::vector<std::string> llama_option_errors(const LlamaOptions& options);
// Throws ModelError with the first message of llama_option_errors().
void check_llama_options(const LlamaOptions& options);

ProductType product_type(const LlamaOptions& options);  // Returns the type of products that backend torch uses.

// Returns the storage that the options select for these weights: file, bf16, f16, f32, int8 or int4. Never auto.
std::string stored_weights(const LlamaOptions& options, const Weights& weights);

// Packs the weights and returns the model. `weights` is not needed afterwards; `pool` must outlive the model.
//  - progress: called with the loaded fraction, 0 to 1; may be null.
//  - kv_backend: holds the caches of the model. If it is null, they are on the device of the options.
// If the context is not longer than the model's sliding window, the model has no window, because the window hides
// nothing. Throws ModelError.
std::unique_ptr<Model> load_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress = nullptr,
                                  std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// Makes the backend of a model from the weights as they are served (engine/weights/padded_weights.h). `type` is the
// type of the activations. Called after make_llama() has checked the options that it reads itself.
using BackendLoader = std::function<std::unique_ptr<LlamaBackend>(const Weights& weights, kernels::KvType type)>;
// Returns a model over a backend that the caller provides. kv_backend: holds the caches of the model; the CPU's if it
// is null.
std::unique_ptr<Model> make_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const BackendLoader& load, std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// Returns the shape of the caches that a model of load_llama() reads and writes under these options.
CacheShape llama_cache_shape(const ModelConfig& config, const LlamaOptions& options);

}  // namespace smartkv
