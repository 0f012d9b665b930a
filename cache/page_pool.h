// Dense pages: kPageTokens tokens of one layer, all KV heads, K and V. Freed pages are kept for reuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/aligned_buffer.h"

namespace smartkv {

// One page. Per head K, then V, in the layout of kernels/attention.h. Contents start finite.
class DensePage {
 public:
  explicit DensePage(const CacheShape& shape);

  void* k() { return data_.data(); }
  void* v() { return data_.data() + head_bytes_; }
  int64_t head_stride() const { return 2 * head_bytes_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  void copy_from(const DensePage& other);
  kernels::KvSegment segment(int64_t tokens) const;

 private:
  AlignedBuffer data_;
  int64_t head_bytes_;
};

using PageRef = std::shared_ptr<DensePage>;

// Thread-safe. Outlived by its pages.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Keeps up to max_free_bytes of freed pages.
  static std::shared_ptr<PagePool> create(const CacheShape& shape, int64_t max_free_bytes = int64_t{256} << 20);

  PageRef allocate();
  const CacheShape& shape() const { return shape_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes_in_use() const { return in_use_.load(); }  // of pages that somebody holds

 private:
  PagePool(const CacheShape& shape, int64_t max_free_bytes);
  void release(DensePage* page);

  CacheShape shape_;
  int64_t page_bytes_;
  size_t max_free_;
  std::atomic<int64_t> in_use_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<DensePage>> free_;
};

}  // namespace smartkv
