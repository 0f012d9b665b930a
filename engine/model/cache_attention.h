// Attention of one model pass over the caches of its sequences: norms of queries and keys (qk-norm), rotary embedding
// (RoPE), writing the new K and V, attention itself, and probe queries.
// If a cache throws, only its own sequence fails. The other sequences of the pass continue.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "engine/model/llama_backend.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "engine/weights/weights.h"
#include "kernels/aligned_buffer.h"
#include "kernels/head_rows.h"
#include "kernels/kv_backend.h"
#include "kernels/row_memory.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// A pass calls begin(), then show_hidden() and attend() for each layer in order, then end(). Not thread-safe; the work
// runs on the thread pool.
class CacheAttention {
 public:
  //  - config: the configuration of `weights` as it is served. `config` and `pool` must outlive this object; `weights`
  //    need not.
  //  - type: element type of the caches and of the rows that attend() writes.
  //  - backend: holds the pages of the caches. If it is null, the pages are on the CPU and attention runs on `pool`.
  // Throws ModelError if the backend cannot attend with this shape, or if a norm's tensor is missing or has another
  // shape.
  CacheAttention(const Weights& weights, const ModelConfig& config, kernels::KvType type, ThreadPool& pool,
                 std::shared_ptr<kernels::KvBackend> backend);

  // Announces that attend() will be given rows in the memory of the device (KvBackend::allocate()) instead of host
  // memory.
  void use_device_rows();

  // Begins a pass over the batch: reserves room in its caches. The batch must stay valid until end().
  void begin(std::span<const SequenceInput> batch);
  int64_t rows() const { return rows_; }
  std::span<const RowRange> wanted() const { return wanted_; }  // The rows for which logits are wanted.
  int64_t wanted_rows() const { return wanted_rows_; }
  // Shows the input of the layer's attention, which the backend has just projected, to the caches that want it.
  void show_hidden(int64_t layer, const LlamaBackend& backend);
  // Writes the layer's K and V to the caches and attends. qkv: f32 [rows, qkv_width], as LlamaBackend::project() writes
  // it; its queries and keys are normalized and rotated in place. attended: the result, [rows, n_heads head_dim]. In
  // the last layer it has the wanted rows only.
  void attend(int64_t layer, float* qkv, void* attended);
  // Ends the pass: advances the caches and stores each failure in its SequenceInput::failure. Throws the first failure
  // of an input whose `failure` is null.
  void end();

  int64_t qkv_width() const { return (config_.n_heads + 2 * config_.n_kv_heads) * config_.head_dim; }
  int64_t q_width() const { return config_.n_heads * config_.head_dim; }
  const Rope& rope() const { return rope_; }
  // Returns AttentionShape::sinks of a layer, as caches number them.
  const float* sinks(int64_t cache_layer) const;
  const std::shared_ptr<kernels::KvBackend>& backend() const { return backend_; }
  int64_t weight_bytes() const { return float_bytes_; }

 private:
  // Consecutive rows of one sequence: the unit of work.
  struct Piece {
    int64_t input, first, n, row;
  };
  // Weights of the qk-norm: f32 [head_dim], or [n_heads head_dim] and [n_kv_heads head_dim]. Empty if the model has
  // none.
  struct HeadNorms {
    kernels::RowMemory q, k;
  };

  // Calls f(cache) unless the input has failed. An exception becomes the failure of the input. Not
  // thread-safe: only the thread that runs the pass may call it.
  template <typename F>
  void guard(size_t input, const F& f);
  bool failed(size_t input) const { return failures_[input] != nullptr; }
  int64_t tokens(size_t input) const { return static_cast<int64_t>(batch_[input].tokens.size()); }

  // Describes rows [first, first + n) of the pass for the qk-norm and RoPE.
  kernels::HeadRows head_rows(int64_t layer, float* qkv, int64_t first, int64_t n) const;
  int64_t cache_layer(int64_t layer) const { return cache_layers_[static_cast<size_t>(layer)]; }
  void prefetch(int64_t layer);  // Announces the segments that the layer will read, if the backend prefetches.
  void write(int64_t layer, float* qkv);
  void observe(int64_t layer, const float* qkv);
  void take_probes(int64_t layer, const float* qkv);
  void fetch_queries();
  void show_probes(int64_t layer);

  const ModelConfig& config_;
  std::vector<int64_t> cache_layers_;      // [n_layers]: the number that caches give the layer.
  kernels::AttentionShape shape_;          // `window` is set for each layer in turn.
  std::vector<std::vector<float>> sinks_;  // [n_layers][n_heads]; empty if the model has none
  std::vector<HeadNorms> norms_;           // [n_layers]
  int64_t float_bytes_ = 0;                // of norms and sinks
  Rope rope_, window_rope_;                // of layers with full attention, and of those with a window
  bool two_ropes_;
  // Factor of the queries for models with an attention_multiplier; attention itself divides by sqrt(head_dim).
  float query_scale_;
  ThreadPool& pool_;
  std::shared_ptr<kernels::KvBackend> backend_;
  bool device_rows_ = false;

  // State of the current pass. Buffers grow to the size of the largest pass and are never shrunk.
  std::span<const SequenceInput> batch_;
  int64_t rows_ = 0, wanted_rows_ = 0;
  std::vector<RowRange> wanted_;
  std::vector<Piece> pieces_;
  std::vector<std::exception_ptr> failures_;        // One per input; null if it has not failed.
  std::vector<std::exception_ptr> write_failures_;  // The same for the parallel writes of one layer.
  std::mutex write_failures_mutex_;
  // cos, then sin: f32 [rows, 2, head_dim / 2]; if there are two ropes, then the same of the second.
  AlignedBuffer angles_;
  kernels::RowMemory row_angles_;                       // A copy of angles_ on the device, if the rows are on a device.
  std::vector<std::vector<kernels::KvSegment>> views_;  // One view per input.
  std::vector<kernels::KvSegment> ahead_;               // Segments of all inputs in the next layer, for prefetching.
  std::vector<kernels::AttentionTask> tasks_;
  std::vector<kernels::AttentionMassTask> mass_tasks_;
  AlignedBuffer mass_;     // Attention mass of all probes, f32.
  AlignedBuffer queries_;  // Host copy of the probe queries, f32 [probes, n_heads head_dim].
};

}  // namespace smartkv
