// Consecutive dense tokens of one layer of one sequence, stored in pages. The last page may be partly filled.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_pool.h"

namespace smartkv {

// Tokens [first(), ...) of a layer, where first() is a multiple of kPageTokens. Copies of this object share its pages;
// a shared page is copied before it is written.
class DenseLayer {
 public:
  explicit DenseLayer(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}

  int64_t first() const { return first_; }
  // Makes room for tokens [first(), n), and makes the pages of tokens [from, n) exclusive so that they can be written.
  void reserve(int64_t from, int64_t n);
  // Makes the page of token `position` exclusive: copies it if it is shared.
  void own(int64_t position) { own_page((position - first_) / kernels::kPageTokens); }
  // Returns the bytes that reserve(from, n) would allocate.
  int64_t growth(int64_t from, int64_t n) const;
  // Writes rows of K and V to tokens [position, position + rows.n). REQUIRES: reserve() covered these tokens.
  // Thread-safe for disjoint tokens. KvBackend::write() says how long the rows must stay valid.
  void write(int64_t position, const KvRows& rows);
  // Returns where K and V of one token and KV head are, for jobs of the backend. A job may write there only after
  // own().
  kernels::TokenPlace place(int64_t position, int64_t head) const {
    return page(position).place(head, position % kernels::kPageTokens);
  }
  // Reads tokens [position, position + n) of KV heads [head, head + n_heads) into `k` and `v`, f32 [n_heads, n,
  // head_dim], heads head_stride floats apart. Either may be null. The results are there after KvBackend::finish().
  void read(int64_t position, int64_t n, int64_t head, int64_t n_heads, float* k, float* v, int64_t head_stride) const;
  // Returns the page that begins with token `position`, for the caller to keep. The page must not be written
  // afterwards.
  PageRef share(int64_t position) const {
    return pages_[static_cast<size_t>((position - first_) / kernels::kPageTokens)];
  }
  // Returns `tokens` tokens of page number `page`, which begins with token first() + kPageTokens * page.
  kernels::KvSegment segment(int64_t page, int64_t tokens) const {
    return pages_[static_cast<size_t>(page)]->segment(tokens);
  }
  // Appends the segments of tokens [first(), n).
  void append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const;
  // Frees the pages past token n.
  void truncate(int64_t n);
  // Frees the pages before token n, a multiple of kPageTokens. first() becomes n.
  void drop_before(int64_t n);

  // save() writes the pages of tokens [first(), n). load() replaces all tokens by the saved ones, and throws CacheError
  // if the bytes end early.
  void save(int64_t n, StateWriter* out) const;
  void load(int64_t first, int64_t n, StateReader* in);

  int64_t n_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t bytes() const { return n_pages() * pool_->page_bytes(); }
  // Bytes of pages that also have another holder: of all, and of those before token n, a multiple of kPageTokens.
  int64_t shared_bytes() const { return shared_bytes_before(first_ + n_pages() * kernels::kPageTokens); }
  int64_t shared_bytes_before(int64_t n) const;

 private:
  DensePage& page(int64_t position) const;
  void own_page(int64_t i);

  std::shared_ptr<PagePool> pool_;
  std::vector<PageRef> pages_;
  int64_t first_ = 0;
};

// save_page() writes a page's bytes. load_page() reads them into a new page of the pool; it throws CacheError if they
// end early.
void save_page(const PagePool& pool, const DensePage& page, StateWriter* out);
PageRef load_page(PagePool& pool, StateReader* in);

// Returns the bytes of the pages that hold n dense tokens over all layers.
int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens);

}  // namespace smartkv
