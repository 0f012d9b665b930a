// A run of dense tokens of one layer of one sequence, in pages; the last page is being filled.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_pool.h"

namespace smartkv {

// Tokens [first(), ...) of a layer, first() a multiple of kPageTokens. Copies share their pages; a shared page is copied
// before it is written.
class DenseLayer {
 public:
  explicit DenseLayer(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}

  int64_t first() const { return first_; }
  // Pages for tokens [first(), n), and the exclusive right to write tokens [from, n).
  void reserve(int64_t from, int64_t n);
  // The exclusive right to write the page of one token.
  void own(int64_t position) { own_page((position - first_) / kernels::kPageTokens); }
  int64_t growth(int64_t from, int64_t n) const;  // bytes that reserve() would allocate
  // Rows of KvRows go to tokens [position, position + rows.n). Thread-safe for disjoint tokens.
  void write(int64_t position, const KvRows& rows);
  // Of one token and KV head, for jobs of the backend.
  kernels::TokenPlace place(int64_t position, int64_t head) const {
    return page(position).place(head, position % kernels::kPageTokens);
  }
  // K and V of tokens [position, position + n), which KV heads [head, head + n_heads) have, into rows of n tokens a KV head: f32
  // [n_heads, n, head_dim], heads head_stride floats apart. Either may be null. There after KvBackend::finish().
  void read(int64_t position, int64_t n, int64_t head, int64_t n_heads, float* k, float* v, int64_t head_stride) const;
  // The page that begins with token `position`, to keep. It must not be written any more.
  PageRef share(int64_t position) const { return pages_[static_cast<size_t>((position - first_) / kernels::kPageTokens)]; }
  // Of the tokens from first() + kPageTokens * page on.
  kernels::KvSegment segment(int64_t page, int64_t tokens) const { return pages_[static_cast<size_t>(page)]->segment(tokens); }
  // Segments of tokens [first(), n).
  void append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const;
  void truncate(int64_t n);     // frees the pages past token n
  void drop_before(int64_t n);  // frees the pages before token n, a multiple of kPageTokens; first() becomes n

  // The pages of tokens [first(), n).
  void save(int64_t n, StateWriter* out) const;
  void load(int64_t first, int64_t n, StateReader* in);

  int64_t n_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t bytes() const { return n_pages() * pool_->page_bytes(); }
  int64_t shared_bytes() const;                     // of pages that somebody else holds, too
  int64_t own_bytes_before(int64_t n) const;        // that drop_before(n) gives back

 private:
  DensePage& page(int64_t position) const;
  void own_page(int64_t i);

  std::shared_ptr<PagePool> pool_;
  std::vector<PageRef> pages_;
  int64_t first_ = 0;
};

// Writes a page's bytes, and reads them into a new page of the pool. load_page() throws CacheError when they end early.
void save_page(const PagePool& pool, const DensePage& page, StateWriter* out);
PageRef load_page(PagePool& pool, StateReader* in);

// Bytes of the pages that hold n dense tokens over all layers.
int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens);

}  // namespace smartkv
