#include "tests/cache/conformance_backend.h"

#include "cache/cuda/kv_backend.h"

namespace smartkv {

// Only one shape, because a token takes a millisecond to emulate.
std::vector<ConformanceShape> conformance_shapes() { return {{2, 1, 64}}; }
std::shared_ptr<kernels::KvBackend> conformance_backend(ThreadPool* /*threads*/) { return make_cuda_cache_backend(0); }
size_t conformance_device_bytes(kernels::KvBackend& backend) {
  backend.finish();
  return dynamic_cast<kernels::cuda::DeviceKvBackend&>(backend).bytes_in_use();
}

}  // namespace smartkv
