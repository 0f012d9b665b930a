// Scores tokens by a gate, or by the norms of their keys, where their pages are.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "cache/policies/gated_eviction/gate_maps.h"
#include "cache/sequence_cache.h"
#include "cache/stores/token_scoring.h"
#include "kernels/kv_backend.h"

namespace smartkv {

namespace kernels::cuda {
class DeviceKvBackend;
}

// A gate that is where a backend's pages are.
struct UploadedGate {
  explicit UploadedGate(std::shared_ptr<const GateMaps> of) : maps(std::move(of)) {}
  virtual ~UploadedGate() = default;

  std::shared_ptr<const GateMaps> maps;
};

// A device's own implementation. It computes what score_tokens() computes on the host, up to rounding.
class GateKernels : public kernels::PolicyKernels {
 public:
  // Copies a gate to the device, or returns the copy that is there. Thread-safe.
  virtual std::shared_ptr<const UploadedGate> upload(std::shared_ptr<const GateMaps> maps) = 0;
  // gate: a result of upload(), or null for the norms of keys.
  virtual void score(const CacheShape& shape, std::shared_ptr<const UploadedGate> gate,
                     std::span<const TokenScoring> layers) = 0;
};
std::unique_ptr<GateKernels> make_cuda_gate_kernels(kernels::cuda::DeviceKvBackend& backend);

std::shared_ptr<const UploadedGate> upload(const kernels::KvBackend& backend, std::shared_ptr<const GateMaps> maps);

// Writes log4 of the expected lifespans as scores, and the importance. Without a gate the scores are |k|. Works like a
// job of kernels::PageOps, on any backend. The results are valid after finish(). Not thread-safe, because it uses
// `threads`, which may be null.
void score_tokens(kernels::KvBackend& backend, ThreadPool* threads, const CacheShape& shape,
                  const std::shared_ptr<const UploadedGate>& gate, std::span<const TokenScoring> layers);

}  // namespace smartkv
