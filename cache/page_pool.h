// Memory of the caches of one model: a pool of dense pages, and a count of every other byte that the caches hold.
//
// A dense page holds K and V of kPageTokens tokens of one layer, for all KV heads. Freed pages are kept for reuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/kv_backend.h"

namespace smartkv {

// One dense page: for each KV head K, then V, in the layout of kernels/attention.h. A new page is zeroed, because whole
// pages are written to files (DenseLayer::save()) and another sequence's tokens must not get there. Only the backend
// may dereference the pointers.
class DensePage {
 public:
  DensePage(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend);

  void* k() { return data_.data(); }
  void* v() { return data_.data() + head_bytes_; }
  int64_t head_stride() const { return 2 * head_bytes_; }  // Bytes from one KV head to the next, in k() and in v().
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  const std::byte* data() const { return data_.data(); }
  std::byte* data() { return data_.data(); }
  // Copies all bytes of `other` with a job of the backend.
  void copy_from(const DensePage& other);
  // Returns the first `tokens` tokens of all KV heads as a segment.
  kernels::KvSegment segment(int64_t tokens) const;
  // Returns where K and V of one slot of a KV head are, for jobs of the backend.
  kernels::TokenPlace place(int64_t head, int64_t slot);

 private:
  kernels::PageMemory data_;
  int64_t head_bytes_;
};

using PageRef = std::shared_ptr<DensePage>;

// Thread-safe. Pages and charges share ownership of their pool, so they keep it alive.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Creates a pool for pages of `shape`. They live in memory of `backend`, or of the CPU if it is null. Up to
  // max_free_bytes of freed pages are kept for reuse.
  static std::shared_ptr<PagePool> create(const CacheShape& shape,
                                          std::shared_ptr<kernels::KvBackend> backend = nullptr,
                                          int64_t max_free_bytes = int64_t{256} << 20);

  // Returns a zeroed page. It counts in bytes_in_use() until its last reference is gone. Throws std::bad_alloc.
  PageRef allocate();
  // Frees the pages that are kept for reuse.
  void free_unused();
  const CacheShape& shape() const { return shape_; }
  const std::shared_ptr<kernels::KvBackend>& backend() const { return backend_; }
  int64_t page_bytes() const { return page_bytes_; }
  // Every byte that caches hold: dense pages, packed pages and the state of policies. A page counts once, however many
  // sequences share it. Pages kept for reuse do not count.
  int64_t bytes_in_use() const { return in_use_.load(std::memory_order_relaxed); }
  // The highest value of bytes_in_use() since the last restart_peak().
  int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  void restart_peak() { peak_ = bytes_in_use(); }

 private:
  friend class PoolCharge;
  PagePool(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend, int64_t max_free_bytes);
  void release(DensePage* page);
  // Adds to bytes_in_use(). `bytes` may be negative.
  void add(int64_t bytes);

  CacheShape shape_;
  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t page_bytes_;
  size_t max_free_;
  std::atomic<int64_t> in_use_{0}, peak_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<DensePage>> free_;
  // A page of zeros, copied into pages that are reused. Allocated at the first reuse.
  std::unique_ptr<const DensePage> blank_;
};

// Counts bytes other than dense pages in the pool's bytes_in_use() while this object lives. A copy counts the same
// bytes a second time, because the state that it stands for is copied, too.
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
