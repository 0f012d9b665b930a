// The KvBackend of a CUDA device. Pages are in device memory, which the host must not dereference. Jobs on pages wait
// in a queue (page_queue.h) until a call needs them done. Everything else that attention reads and writes is copied to
// the device and back in each call, unless it is on the device already.
//
// It is not batch-invariant: the bits of a query depend on its own segments and on the number of queries in its task.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

class DeviceKvBackend : public KvBackend {
 public:
  virtual size_t bytes_in_use() const = 0;  // Bytes of pages in use, and of pages released since the queue last ran.
  virtual size_t bytes_held() const = 0;    // Bytes of the device that are held for pages.
};

// Returns the backend of device number `device`, counted from 0. REQUIRES: calls of attention() and attention_mass()
// come one at a time. All calls throw std::runtime_error on CUDA errors.
std::shared_ptr<DeviceKvBackend> make_cuda_kv_backend(int device);

}  // namespace smartkv::kernels::cuda
