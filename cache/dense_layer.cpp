#include "cache/dense_layer.h"

#include <algorithm>

#include "cache/boundaries.h"
#include "cache/state_io.h"

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

int64_t DenseLayer::shared_bytes_before(int64_t n) const {
  return std::count_if(pages_.begin(), pages_.begin() + (n - first_) / kPageTokens,
                       [](const PageRef& page) { return page.use_count() > 1; }) *
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
    pool_->backend()->write(
        shape.type, shape.n_kv_heads, shape.head_dim,
        {rows.k + i * rows.stride, rows.v + i * rows.stride, rows.stride, slot, n, to.k(), to.v(), to.head_stride()});
    i += n;
  }
}

void DenseLayer::read(int64_t position, int64_t n, int64_t head, int64_t n_heads, float* k, float* v,
                      int64_t head_stride) const {
  const CacheShape& shape = pool_->shape();
  const auto row = [&](float* rows, int64_t i) { return rows == nullptr ? nullptr : rows + i * shape.head_dim; };
  for (int64_t i = 0; i < n;) {
    const int64_t slot = (position + i) % kPageTokens, some = std::min(n - i, kPageTokens - slot);
    const kernels::PageRead job{
        page(position + i).segment(kPageTokens), head, n_heads, slot, some, row(k, i), row(v, i), head_stride};
    pool_->backend()->read(shape.type, shape.head_dim, {&job, 1});
    i += some;
  }
}

void DenseLayer::append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const {
  for (int64_t start = first_; start < n; start += kPageTokens) {
    segments->push_back(page(start).segment(std::min(kPageTokens, n - start)));
  }
}

void save_page(const PagePool& pool, const DensePage& page, StateWriter* out) {
  const auto bytes = static_cast<size_t>(pool.page_bytes());
  pool.backend()->download(page.data(), bytes, out->page(bytes));
}

PageRef load_page(PagePool& pool, StateReader* in) {
  in->expect(in->left() >= pool.page_bytes(), "a page");
  PageRef page = pool.allocate();
  const std::span<const char> bytes = in->bytes(static_cast<size_t>(pool.page_bytes()));
  pool.backend()->upload(bytes.data(), bytes.size(), page->data());
  return page;
}

void DenseLayer::save(int64_t n, StateWriter* out) const {
  for (int64_t start = first_; start < n; start += kPageTokens) {
    save_page(*pool_, page(start), out);
  }
}

void DenseLayer::load(int64_t first, int64_t n, StateReader* in) {
  first_ = first;
  pages_.clear();
  for (int64_t start = first; start < n; start += kPageTokens) {
    pages_.push_back(load_page(*pool_, in));
  }
}

void DenseLayer::truncate(int64_t n) {
  pages_.resize(static_cast<size_t>((std::max(n, first_) - first_ + kPageTokens - 1) / kPageTokens));
}

void DenseLayer::drop_before(int64_t n) {
  pages_.erase(pages_.begin(), pages_.begin() + (n - first_) / kPageTokens);
  first_ = n;
}

int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens) {
  return whole_pages(n_tokens) * shape.bytes_per_token();
}

}  // namespace smartkv
