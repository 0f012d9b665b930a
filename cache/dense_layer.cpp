#include "cache/dense_layer.h"

#include <algorithm>
#include <utility>

#include "cache/boundaries.h"
#include "cache/state_io.h"
#include "kernels/elementwise.h"

namespace smartkv {

using kernels::kPageTokens;

DensePage& DenseLayer::page(int64_t position) const {
  return *pages_[static_cast<size_t>((position - first_) / kPageTokens)];
}

int64_t DenseLayer::growth(int64_t from, int64_t n) const {
  const int64_t needed = (n - first_ + kPageTokens - 1) / kPageTokens;
  int64_t pages = std::max<int64_t>(0, needed - n_pages());
  for (int64_t i = (from - first_) / kPageTokens; i < std::min(needed, n_pages()); ++i) {
    pages += pages_[static_cast<size_t>(i)].use_count() > 1 ? 1 : 0;
  }
  return pages * pool_->page_bytes();
}

int64_t DenseLayer::shared_bytes() const {
  return std::count_if(pages_.begin(), pages_.end(), [](const PageRef& page) { return page.use_count() > 1; }) *
         pool_->page_bytes();
}

int64_t DenseLayer::own_bytes_before(int64_t n) const {
  return std::count_if(pages_.begin(), pages_.begin() + (n - first_) / kPageTokens,
                       [](const PageRef& page) { return page.use_count() == 1; }) *
         pool_->page_bytes();
}

void DenseLayer::own_page(int64_t i) {
  PageRef& held = pages_[static_cast<size_t>(i)];
  if (held.use_count() == 1) return;
  PageRef own = pool_->allocate();
  own->copy_from(*held);
  held = std::move(own);
}

void DenseLayer::reserve(int64_t from, int64_t n) {
  const int64_t needed = (n - first_ + kPageTokens - 1) / kPageTokens;
  for (int64_t i = (from - first_) / kPageTokens; i < std::min(needed, n_pages()); ++i) own_page(i);
  while (n_pages() < needed) pages_.push_back(pool_->allocate());
}

void DenseLayer::write(int64_t position, const KvRows& rows) {
  const CacheShape& shape = pool_->shape();
  for (int64_t i = 0; i < rows.n;) {
    DensePage& to = page(position + i);
    const int64_t slot = (position + i) % kPageTokens, n = std::min(rows.n - i, kPageTokens - slot);
    pool_->backend()->write(shape.type, shape.n_kv_heads, shape.head_dim,
                            {rows.k + i * rows.stride, rows.v + i * rows.stride, rows.stride, slot, n, to.k(), to.v(),
                             to.head_stride()});
    i += n;
  }
}

void DenseLayer::load(int64_t position, int64_t head, float* k, float* v) const {
  kernels::load_kv(pool_->shape().type, pool_->shape().head_dim, page(position).segment(kPageTokens), head,
                   position % kPageTokens, k, v);
}

void DenseLayer::store(int64_t position, int64_t head, const float* k, const float* v) {
  const CacheShape& shape = pool_->shape();
  DensePage& to = page(position);
  const int64_t offset = head * to.head_stride();
  kernels::store_kv(shape.type, 1, shape.head_dim, k, v, position % kPageTokens, static_cast<std::byte*>(to.k()) + offset,
                    static_cast<std::byte*>(to.v()) + offset, to.head_stride());
}

void DenseLayer::append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const {
  for (int64_t start = first_; start < n; start += kPageTokens) {
    segments->push_back(page(start).segment(std::min(kPageTokens, n - start)));
  }
}

void DenseLayer::save(int64_t n, StateWriter* out) const {
  for (int64_t start = first_; start < n; start += kPageTokens) {
    const auto contents = std::as_const(page(start)).contents();
    out->bytes(contents.data(), contents.size());
  }
}

void DenseLayer::load(int64_t first, int64_t n, StateReader* in) {
  first_ = first;
  pages_.clear();
  for (int64_t start = first; start < n; start += kPageTokens) {
    in->expect(in->left() >= pool_->page_bytes(), "a page");
    PageRef page = pool_->allocate();
    in->bytes(page->contents().data(), page->contents().size());
    pages_.push_back(std::move(page));
  }
}

void DenseLayer::truncate(int64_t n) {
  pages_.resize(static_cast<size_t>((std::max(n, first_) - first_ + kPageTokens - 1) / kPageTokens));
}

void DenseLayer::drop_before(int64_t n) {
  pages_.erase(pages_.begin(), pages_.begin() + (n - first_) / kPageTokens);
  first_ = n;
}

int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens) { return whole_pages(n_tokens) * shape.bytes_per_token(); }

}  // namespace smartkv
