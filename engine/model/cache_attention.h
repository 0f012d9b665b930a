// Attention of a pass over its sequences' caches: norms of heads, RoPE, the caches' new rows, attention itself, probes.
// What a cache throws is its sequence's failure; the others go on.
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

class CacheAttention {
 public:
  // config: that of `weights`, as it is served. type: of the caches and of what attend() writes. backend: of the caches' pages;
  // null: the CPU, on `pool`. Throws ModelError.
  CacheAttention(const Weights& weights, const ModelConfig& config, kernels::KvType type, ThreadPool& pool,
                 std::shared_ptr<kernels::KvBackend> backend);

  // attend() will be given rows in the device's memory (KvBackend::allocate()) instead of the host's.
  void use_device_rows();

  // Begins a pass over the batch, which outlives it: makes room in its caches.
  void begin(std::span<const SequenceInput> batch);
  int64_t rows() const { return rows_; }
  std::span<const RowRange> wanted() const { return wanted_; }  // rows whose logits are wanted
  int64_t wanted_rows() const { return wanted_rows_; }
  // Writes the layer's K and V and attends. qkv: f32 [rows, qkv_width], as LlamaBackend::project() gives it; its queries and
  // keys are normed and rotated in place. attended: [rows, n_heads head_dim], in the last layer of the wanted rows only.
  void attend(int64_t layer, float* qkv, void* attended);
  // Ends the pass: advances the caches and hands out failures, throwing the first that has no place to go.
  void end();

  int64_t qkv_width() const { return (config_.n_heads + 2 * config_.n_kv_heads) * config_.head_dim; }
  int64_t q_width() const { return config_.n_heads * config_.head_dim; }
  const Rope& rope() const { return rope_; }
  const std::shared_ptr<kernels::KvBackend>& backend() const { return backend_; }
  int64_t weight_bytes() const { return norm_bytes_; }

 private:
  // Consecutive rows of one sequence: the unit of work.
  struct Piece {
    int64_t input, first, n, row;
  };
  // RMSNorm of queries and keys: f32 [head_dim] or [heads head_dim]; empty: none.
  struct HeadNorms {
    kernels::RowMemory q, k;
  };

  // f(cache) of an input that has not failed; what it throws is the input's failure. The calling thread only.
  template <typename F>
  void guard(size_t input, const F& f);
  bool failed(size_t input) const { return failures_[input] != nullptr; }
  int64_t tokens(size_t input) const { return static_cast<int64_t>(batch_[input].tokens.size()); }

  // Rows [first, first + n) of the pass before attention.
  kernels::HeadRows head_rows(int64_t layer, float* qkv, int64_t first, int64_t n) const;
  void prefetch(int64_t layer);  // what it will attend to, where the backend wants to know
  void write(int64_t layer, float* qkv);
  void observe(int64_t layer, const float* qkv);
  void take_probes(int64_t layer, const float* qkv);
  void fetch_queries();
  void show_probes(int64_t layer);

  const ModelConfig& config_;
  kernels::AttentionShape shape_;  // its window: that of the layer at hand
  std::vector<HeadNorms> norms_;  // of the layers
  int64_t norm_bytes_ = 0;
  Rope rope_;
  float query_scale_;  // attention itself divides by sqrt(head_dim)
  ThreadPool& pool_;
  std::shared_ptr<kernels::KvBackend> backend_;
  bool device_rows_ = false;

  // State of the pass; the buffers grow to the largest pass and stay.
  std::span<const SequenceInput> batch_;
  int64_t rows_ = 0, wanted_rows_ = 0;
  std::vector<RowRange> wanted_;
  std::vector<Piece> pieces_;
  std::vector<std::exception_ptr> failures_;        // of the inputs; null: none so far
  std::vector<std::exception_ptr> write_failures_;  // of the layer's writes, which are made in parallel
  std::mutex write_failures_mutex_;
  AlignedBuffer angles_;  // cos then sin, f32 [rows, 2, head_dim / 2]
  kernels::RowMemory row_angles_;  // the same where rows are on a device
  std::vector<std::vector<kernels::KvSegment>> views_;
  std::vector<kernels::KvSegment> ahead_;  // of all inputs, of the layer that comes
  std::vector<kernels::AttentionTask> tasks_;
  std::vector<kernels::AttentionMassTask> mass_tasks_;
  AlignedBuffer mass_;     // f32, of all probes
  AlignedBuffer queries_;  // of the probes, f32 [probes, n_heads head_dim]
};

}  // namespace smartkv
