// LLaMA (Touvron et al. 2023): RMSNorm, grouped-query attention with RoPE over a sequence cache, SwiGLU; and its relatives
// (engine/weights/architecture.h), as their ModelConfig says. Caches and attention are this project's kernels, products
// and norms a backend's.
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

struct LlamaOptions {
  std::string dtype = "auto";    // auto | bf16 | f16 | f32: activations; auto: bf16; f16: of backend torch. KV cache: f32 or bf16
  // auto | file | bf16 | f32 | int8 | int4: storage of the matrices. file: the integers of a quantized file, and bf16 for what
  // it has as floats. auto: f32 with dtype f32, else what `smartkv quantize` made the file for, else file. Backend torch expands
  // all integers.
  std::string weights = "auto";
  int64_t context_length = 0;    // 0: the model's own
  // none | linear | dynamic | yarn: of a context longer than the model's own, instead of the scaling that the model has.
  std::string rope_scaling = "none";
  double rope_factor = 0;  // by which rope_scaling stretches positions; 0: context_length over the model's own
  std::string backend = "native";  // native: this project's kernels | torch: LibTorch, 16- and 32-bit weights only
  std::string device = "cpu";      // cpu | cuda:N, of the torch backend: products, caches and attention
  // auto | on | off: whether what small passes compute between attentions is captured once and replayed; auto: on a GPU, but for
  // ranks, which have none.
  std::string cuda_graphs = "auto";
  bool int4_floats = false;  // with weights file: floats become 4-bit integers instead of bf16, as drafts want them
};

// Returns what is wrong with the options: values that are not, and options that do not go together, each by the option's name. Needs
// no model.
std::vector<std::string> llama_option_errors(const LlamaOptions& options);
void check_llama_options(const LlamaOptions& options);  // throws ModelError with the first of them

ProductType product_type(const LlamaOptions& options);  // of backend torch

// Returns the storage that the options stand for with these weights: file, bf16, f16, f32, int8 or int4. Never auto.
std::string stored_weights(const LlamaOptions& options, const Weights& weights);

// Packs the weights; `weights` is not needed afterwards. Throws ModelError, also when the context is longer than the
// model's sliding window: up to there, attention over the window is attention over everything. `progress` gets 0..1.
// kv_backend: where its caches live; null: where the options' device says.
std::unique_ptr<Model> load_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress = nullptr,
                                  std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// Over backends of the caller's; kv_backend: null: the CPU's. `load`: makes it of the weights as they are served (engine/weights/padded_weights.h), with
// activations of this type, once the options are known to be good.
using BackendLoader = std::function<std::unique_ptr<LlamaBackend>(const Weights& weights, kernels::KvType type)>;
std::unique_ptr<Model> make_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const BackendLoader& load, std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

// The caches that load_llama's model reads and writes under these options.
CacheShape llama_cache_shape(const ModelConfig& config, const LlamaOptions& options);

}  // namespace smartkv
