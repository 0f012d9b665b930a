// What the caches of one model hold: dense pages (kPageTokens tokens of one layer, all KV heads, K and V; freed ones are
// kept for reuse), and the count of every other byte.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/kv_backend.h"

namespace smartkv {

// One page. Per head K, then V, in the layout of kernels/attention.h. It starts as zeros, because whole pages are written to
// files (DenseLayer::save()), and another sequence's tokens must not get there. Only the backend may dereference its pointers.
class DensePage {
 public:
  DensePage(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend);

  void* k() { return data_.data(); }
  void* v() { return data_.data() + head_bytes_; }
  int64_t head_stride() const { return 2 * head_bytes_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  const std::byte* data() const { return data_.data(); }
  std::byte* data() { return data_.data(); }
  void copy_from(const DensePage& other);
  kernels::KvSegment segment(int64_t tokens) const;
  kernels::TokenPlace place(int64_t head, int64_t slot);

 private:
  kernels::PageMemory data_;
  int64_t head_bytes_;
};

using PageRef = std::shared_ptr<DensePage>;

// Thread-safe. Outlived by its pages and charges.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // backend: where pages live; null: the CPU. Keeps up to max_free_bytes of freed pages.
  static std::shared_ptr<PagePool> create(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend = nullptr,
                                          int64_t max_free_bytes = int64_t{256} << 20);

  PageRef allocate();  // throws std::bad_alloc
  void free_unused();  // what is kept for reuse
  const CacheShape& shape() const { return shape_; }
  const std::shared_ptr<kernels::KvBackend>& backend() const { return backend_; }
  int64_t page_bytes() const { return page_bytes_; }
  // Every byte that caches hold: dense pages and packed ones, each once however many sequences share it, and the state of
  // the policies. Not what is kept for reuse.
  int64_t bytes_in_use() const { return in_use_.load(std::memory_order_relaxed); }
  // The most bytes in use at any moment since the last restart_peak().
  int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  void restart_peak() { peak_ = bytes_in_use(); }

 private:
  friend class PoolCharge;
  PagePool(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend, int64_t max_free_bytes);
  void release(DensePage* page);
  void add(int64_t bytes);  // to bytes_in_use(); may be negative

  CacheShape shape_;
  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t page_bytes_;
  size_t max_free_;
  std::atomic<int64_t> in_use_{0}, peak_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<DensePage>> free_;
  std::unique_ptr<const DensePage> blank_;  // zeros, for pages that are used again; made with the first one
};

// Bytes besides dense pages that its owner holds: counted in the pool while this lives. A copy counts anew, as the copied
// state does.
class PoolCharge {
 public:
  explicit PoolCharge(std::shared_ptr<PagePool> pool, int64_t bytes = 0) : pool_(std::move(pool)) { set(bytes); }
  PoolCharge(const PoolCharge& other) : PoolCharge(other.pool_, other.bytes_) {}
  PoolCharge& operator=(const PoolCharge&) = delete;
  ~PoolCharge() { set(0); }

  int64_t bytes() const { return bytes_; }
  void set(int64_t bytes) {
    if (bytes != bytes_) pool_->add(bytes - bytes_);
    bytes_ = bytes;
  }

 private:
  std::shared_ptr<PagePool> pool_;
  int64_t bytes_ = 0;
};

}  // namespace smartkv
