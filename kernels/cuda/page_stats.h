// Statistics of pages for policies, on a CUDA device: scores of tokens by a gate or by the norms of their keys, ranges
// and squares, products of queries with keys.
//
// Jobs are in host memory. Everything that they point to is on the device, results included. All functions launch on
// `stream` and do not wait. They throw std::invalid_argument for a job that does not fit, and std::runtime_error on
// CUDA errors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

// The maps of one layer: weights in bf16 as GateMaps packs them, biases, and the maps of importance.
struct GateTable {
  const uint32_t* weight[GateMaps::kDepth];
  const float* bias[GateMaps::kDepth];
  const float* importance;  // [importance_heads, features + 1]. Null if there are none.
};

// A gate in device memory.
class DeviceGate final : public BackendGate {
 public:
  // Copies the maps to the device and waits until they are there.
  DeviceGate(const GateMaps& maps, CUstream_st* stream);

  const GateTable& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }
  int64_t n_layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t n_kv_heads() const { return n_kv_heads_; }
  int64_t importance_heads() const { return importance_heads_; }
  int64_t head_dim() const { return head_dim_; }

 private:
  int64_t n_kv_heads_, head_dim_, importance_heads_;
  std::vector<GateTable> layers_;
  DeviceBuffer memory_;
};

// Scores tokens by `gate`, or by the norms of their keys if it is null.
void score_tokens(int64_t n_kv_heads, int64_t head_dim, const DeviceGate* gate, std::span<const TokenScoring> layers,
                  PageWorkspace& workspace, CUstream_st* stream);
void study_pages(int64_t head_dim, std::span<const PageStats> pages, PageWorkspace& workspace, CUstream_st* stream);
void multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, PageWorkspace& workspace, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
