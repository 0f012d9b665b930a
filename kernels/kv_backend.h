// Where the pages of a model's KV caches live, and who computes on them: the CPU, or a device (kernels/cuda/kv_backend.h).
//
// Only what pages hold is the backend's memory: what KvSegment::k and v point to. Everything else that it is given (queries,
// rows, results, biases, orders of channels, lists of segments) is the host's. The host may read and write pages, too, but
// for those with rows in the queue: between write() and the attention() that follows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/attention.h"

namespace smartkv::kernels {

// Rows of new K, after RoPE, and V for slots [slot, slot + n) of a dense page.
struct PageWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], rows row_stride floats apart; so is v
  const float* v = nullptr;
  int64_t row_stride = 0;
  int64_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], each head_stride bytes apart; so is page_v
  void* page_v = nullptr;
  int64_t head_stride = 0;
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;
  virtual std::string_view name() const = 0;
  // Whether a query's result depends on its own segments only, bit for bit: kernels/attention.h.
  virtual bool batch_invariant() const = 0;
  // std::invalid_argument, naming what is wrong, for a shape that it does not run.
  virtual void check(const AttentionShape& shape) const = 0;
  // Whether it attends to pages of this format.
  virtual bool attends_to(KvSegment::Format format) const = 0;

  // Zeroed memory of pages, at a multiple of 64 bytes; thread-safe. Throws std::bad_alloc.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* memory, size_t bytes) noexcept = 0;

  // Thread-safe for disjoint slots. May wait in a queue, and what it points to with it, until attention() or
  // attention_mass() is called for whatever tasks; or forget_writes().
  virtual void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) = 0;
  virtual void forget_writes() noexcept = 0;
  // As kernels/attention.h says, bit for bit where batch_invariant(). All is done when they return.
  virtual void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) = 0;
  virtual void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) = 0;
};

// The CPU's. threads: outlives it; null: the calling thread only.
std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads);

// A page's bytes, owned.
class PageMemory {
 public:
  // Throws std::bad_alloc.
  PageMemory(std::shared_ptr<KvBackend> backend, size_t size)
      : backend_(std::move(backend)), data_(backend_->allocate(size)), size_(size) {}
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory() { backend_->release(data_, size_); }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<KvBackend> backend_;
  std::byte* data_;
  size_t size_;
};

}  // namespace smartkv::kernels
