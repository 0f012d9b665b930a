// A KvBackend owns the pages of a model's KV caches and computes on them: on the CPU or on a device
// (kernels/cuda/kv_backend.h). It is three interfaces: memory, jobs on pages, and attention.
//
// Memory.
//  - The contents of pages, to which KvSegment::k and v and TokenPlace point, may be device memory. The host must not
//    dereference these pointers; it uses the jobs below.
//  - Everything else (queries, rows, results, biases, channel orders, lists of segments, jobs) is host memory.
//  - Exceptions: the rows of qk_norm_rope() must be memory of allocate(). The rows of write(), the queries and results
//    of attention() and the queries of attention_mass() may be. A caller that also works on these itself does so in the
//    device's legacy default stream, with which the backend stays in order.
//
// Order.
//  - REQUIRES: the jobs of one call are independent. No job reads or writes memory that another one writes.
//  - The functions of PageOps are jobs. They take effect in the order of the calls, at the latest in the next call of
//    attention(), attention_mass(), apply_writes(), finish(), prefetch(), download() or upload().
//  - write() is not a job: its rows may reach their pages as late as in the next call of attention(), attention_mass()
//    or apply_writes(), after all jobs that are queued by then.
//  - A page may be released while jobs on it are queued.
//  - Host memory that a job reads may be freed once the call has returned. The rows of write() must stay valid longer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/device_sampler.h"
#include "kernels/kv_attention.h"
#include "kernels/page_ops.h"

namespace smartkv::kernels {

// The memory of pages. Thread-safe.
class KvMemory {
 public:
  virtual ~KvMemory() = default;
  // Returns zeroed memory for pages, aligned to 64 bytes; null for 0 bytes. Throws std::bad_alloc. The zeroing may be
  // queued like a job, so call finish() before anything but jobs and write() writes there.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* memory, size_t bytes) noexcept = 0;
  virtual bool holds(const void* address) const = 0;  // whether it is in memory of allocate(); always true on the CPU
  // Copy a page's bytes to and from host memory. They are done on return.
  virtual void download(const std::byte* page, size_t bytes, void* to) = 0;
  virtual void upload(const void* from, size_t bytes, std::byte* page) = 0;
};

// A device's own implementation of what a policy computes on pages. The policy declares it in its folder, as an
// interface derived from this class. Without one, the policy computes on the host, by jobs such as read().
class PolicyKernels {
 public:
  virtual ~PolicyKernels() = default;
};

class KvBackend : public KvMemory, public PageOps, public KvAttention {
 public:
  virtual std::string_view name() const = 0;

  bool cuts_pages() const override { return false; }
  void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages) override;

  // Returns a second backend for the same device, which allocates its pages in pinned host memory. The first one's
  // attention() accepts the pages of both. Null on the CPU.
  virtual std::shared_ptr<KvBackend> with_host_pages() { return nullptr; }
  // Returns the device sampler, which samples tokens from logits in memory of allocate(), ordered by the legacy default
  // stream. Null if there is none.
  virtual DeviceSampler* device_sampler() { return nullptr; }
  virtual std::span<const std::unique_ptr<PolicyKernels>> policy_kernels() const { return {}; }
};

// Returns the backend's implementation of the interface `Kernels`, or null. The backend owns it.
template <typename Kernels>
Kernels* find_kernels(const KvBackend& backend) {
  for (const auto& kernels : backend.policy_kernels()) {
    if (auto* const found = dynamic_cast<Kernels*>(kernels.get())) return found;
  }
  return nullptr;
}

// Returns the backend of the CPU. `threads` must outlive it; null uses the calling thread only.
std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads);

// Owns the memory of a page.
class PageMemory {
 public:
  // Throws std::bad_alloc.
  PageMemory(std::shared_ptr<KvBackend> backend, size_t size)
      : backend_(std::move(backend)), data_(backend_->allocate(size)), size_(size) {}
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory() { backend_->release(data_, size_); }

  std::byte* data() { return data_; }  // may be device memory; the host must not dereference it
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  KvBackend& backend() const { return *backend_; }

 private:
  std::shared_ptr<KvBackend> backend_;
  std::byte* data_;
  size_t size_;
};

}  // namespace smartkv::kernels
