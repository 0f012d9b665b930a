#include "tests/cache/conformance_backend.h"

namespace smartkv {

std::vector<ConformanceShape> conformance_shapes() {
  return {{9, 3, 64}, {2, 2, 128}, {3, 1, 80}, {2, 1, 64, {.tokens = 100, .n_layers = 2}}};
}
std::shared_ptr<kernels::KvBackend> conformance_backend(ThreadPool* threads) {
  return kernels::make_cpu_kv_backend(threads);
}
size_t conformance_device_bytes(kernels::KvBackend& /*backend*/) { return 0; }

}  // namespace smartkv
