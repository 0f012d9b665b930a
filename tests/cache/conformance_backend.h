// The shapes and the backend of the conformance suite: the CPU in cache_test, the emulated device in cuda_test.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/policy.h"
#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"

namespace smartkv {

struct ConformanceShape {
  int64_t n_heads, n_kv_heads, head_dim;
  SlidingWindow window = {};
};

std::vector<ConformanceShape> conformance_shapes();
std::shared_ptr<kernels::KvBackend> conformance_backend(ThreadPool* threads);
// Returns the bytes of pages on the device of a backend that conformance_backend() returned; 0 for the CPU.
size_t conformance_device_bytes(kernels::KvBackend& backend);

}  // namespace smartkv
