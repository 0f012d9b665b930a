#include "cache/cuda/kv_backend.h"

#include "cache/policies/block_summary/summary_jobs.h"
#include "cache/policies/gated_eviction/gate_jobs.h"

namespace smartkv {

std::shared_ptr<kernels::cuda::DeviceKvBackend> make_cuda_cache_backend(int device) {
  auto backend = kernels::cuda::make_cuda_kv_backend(device);
  backend->add(make_cuda_gate_kernels(*backend));
  backend->add(make_cuda_summary_kernels(*backend));
  return backend;
}

}  // namespace smartkv
