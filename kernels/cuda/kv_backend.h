// The KvBackend of a CUDA device. Pages are in its own memory, which the host does not reach; jobs on them wait in a queue
// (page_queue.h) until something needs them done. What attention is given beside pages is copied to the device and back in
// each call.
//
// It is not batch-invariant: a query's bits depend on its own segments and on the number of queries in its task.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

class DeviceKvBackend : public KvBackend {
 public:
  virtual size_t bytes_in_use() const = 0;  // by pages, and by those released since the queue last ran
  virtual size_t bytes_held() const = 0;    // of the device, for pages
};

// device: its number, from 0 on. Calls of attention() and attention_mass() come one at a time. Here and there
// std::runtime_error for an error of CUDA.
std::shared_ptr<DeviceKvBackend> make_cuda_kv_backend(int device);

}  // namespace smartkv::kernels::cuda
