// The KvBackend of a CUDA device. Pages are in device memory, which the host must not dereference. Jobs on pages wait
// in a queue (page_queue.h) until a call needs them done. Everything else that attention reads and writes is copied to
// the device and back in each call, unless it is on the device already.
//
// It is not batch-invariant: the bits of a query depend on its own segments and on the number of queries in its task.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kv_backend.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

class PageQueue;

class DeviceKvBackend : public KvBackend {
 public:
  virtual size_t bytes_in_use() const = 0;  // Bytes of pages in use, and of pages released since the queue last ran.
  virtual size_t bytes_held() const = 0;    // Bytes of the device that are held for pages.

  // The rest is for PolicyKernels.
  void add(std::unique_ptr<PolicyKernels> kernels) { policy_kernels_.push_back(std::move(kernels)); }
  std::span<const std::unique_ptr<PolicyKernels>> policy_kernels() const final { return policy_kernels_; }
  // Lets `call` add jobs, after PageQueue::start(). Thread-safe. REQUIRES: `call` uses nothing else of the backend.
  virtual void enqueue(KvType type, int64_t head_dim, const std::function<void(PageQueue&)>& call) = 0;
  // Calls work(stream) with the stream of all launches while nothing else uses it. Thread-safe. REQUIRES: as above.
  virtual void on_stream(const std::function<void(CUstream_st*)>& work) = 0;

 private:
  std::vector<std::unique_ptr<PolicyKernels>> policy_kernels_;
};

// Returns the backend of device number `device`, counted from 0. REQUIRES: calls of attention() and attention_mass()
// come one at a time. All calls throw std::runtime_error on CUDA errors.
std::shared_ptr<DeviceKvBackend> make_cuda_kv_backend(int device);

}  // namespace smartkv::kernels::cuda
