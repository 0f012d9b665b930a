#include "cache/dense_layer.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace smartkv {

using kernels::kPageTokens;

void DenseLayer::reserve(int64_t from, int64_t n) {
  const int64_t needed = (n + kPageTokens - 1) / kPageTokens;
  for (int64_t page = from / kPageTokens; page < std::min(needed, n_pages()); ++page) {
    PageRef& held = pages_[static_cast<size_t>(page)];
    if (held.use_count() == 1) continue;
    PageRef own = pool_->allocate();
    own->copy_from(*held);
    held = std::move(own);
  }
  while (n_pages() < needed) pages_.push_back(pool_->allocate());
}

void DenseLayer::write(int64_t position, const KvRows& rows) {
  const CacheShape& shape = pool_->shape();
  for (int64_t i = 0; i < rows.n; ++i) {
    DensePage& page = *pages_[static_cast<size_t>((position + i) / kPageTokens)];
    kernels::store_kv(shape.type, shape.n_kv_heads, shape.head_dim, rows.k + i * rows.stride, rows.v + i * rows.stride,
                      (position + i) % kPageTokens, page.k(), page.v(), page.head_stride());
  }
}

void DenseLayer::append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const {
  for (int64_t start = 0; start < n; start += kPageTokens) {
    segments->push_back(pages_[static_cast<size_t>(start / kPageTokens)]->segment(std::min(kPageTokens, n - start)));
  }
}

void DenseLayer::truncate(int64_t n) { pages_.resize(static_cast<size_t>((n + kPageTokens - 1) / kPageTokens)); }

}  // namespace smartkv
