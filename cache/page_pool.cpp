#include "cache/page_pool.h"

namespace smartkv {
namespace {

int64_t element_bytes(const CacheShape& shape) { return shape.type == kernels::KvType::kBf16 ? 2 : 4; }

}  // namespace

int64_t CacheShape::bytes_per_token() const { return n_layers * 2 * n_kv_heads * head_dim * element_bytes(*this); }

DensePage::DensePage(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend)
    : data_(std::move(backend),
            static_cast<size_t>(2 * shape.n_kv_heads * shape.head_dim * kernels::kPageTokens * element_bytes(shape))),
      head_bytes_(shape.head_dim * kernels::kPageTokens * element_bytes(shape)) {}

void DensePage::copy_from(const DensePage& other) {
  const kernels::PageCopy copy{other.data_.data(), data_.data(), data_.size()};
  data_.backend().copy({&copy, 1});
}

kernels::TokenPlace DensePage::place(int64_t head, int64_t slot) {
  std::byte* const k = data_.data() + head * head_stride();
  return {k, k + head_bytes_, static_cast<int32_t>(slot)};
}

kernels::KvSegment DensePage::segment(int64_t tokens) const {
  return {.tokens = static_cast<int32_t>(tokens),
          .k = data_.data(),
          .v = data_.data() + head_bytes_,
          .head_stride = head_stride()};
}

std::shared_ptr<PagePool> PagePool::create(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend,
                                           int64_t max_free_bytes) {
  if (backend == nullptr) backend = kernels::make_cpu_kv_backend(nullptr);
  return std::shared_ptr<PagePool>(new PagePool(shape, std::move(backend), max_free_bytes));
}

PagePool::PagePool(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend, int64_t max_free_bytes)
    : shape_(shape),
      backend_(std::move(backend)),
      page_bytes_(2 * shape.n_kv_heads * shape.head_dim * kernels::kPageTokens * element_bytes(shape)),
      max_free_(static_cast<size_t>(max_free_bytes / page_bytes_)) {
  free_.reserve(max_free_);  // Pages are released where nothing may throw.
}

PageRef PagePool::allocate() {
  std::unique_ptr<DensePage> page;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      if (blank_ == nullptr) blank_ = std::make_unique<const DensePage>(shape_, backend_);
      page = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (page == nullptr) {
    page = std::make_unique<DensePage>(shape_, backend_);
  } else {
    page->copy_from(*blank_);  // save() writes whole pages: none may hold another sequence's tokens.
  }
  add(page_bytes_);
  return PageRef(page.release(), [pool = shared_from_this()](DensePage* released) { pool->release(released); });
}

void PagePool::free_unused() {
  std::vector<std::unique_ptr<DensePage>> unused;
  const std::lock_guard lock(mutex_);
  unused.swap(free_);
}

void PagePool::add(int64_t bytes) {
  const int64_t now = in_use_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < now && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void PagePool::release(DensePage* page) {
  std::unique_ptr<DensePage> owned(page);
  add(-page_bytes_);
  const std::lock_guard lock(mutex_);
  if (free_.size() < max_free_) free_.push_back(std::move(owned));
}

}  // namespace smartkv
