// The dense part of one layer of one sequence: whole pages, then a last one that is being filled.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_pool.h"

namespace smartkv {

// Tokens [first(), first() + ...) of a layer. Copies share their pages; a shared page is copied before it is written.
class DenseLayer {
 public:
  explicit DenseLayer(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}

  // Pages for tokens [0, n), and the exclusive right to write tokens [from, n).
  void reserve(int64_t from, int64_t n);
  // Rows of KvRows go to tokens [position, position + rows.n). Thread-safe for disjoint tokens.
  void write(int64_t position, const KvRows& rows);
  void append_view(int64_t n, std::vector<kernels::KvSegment>* segments) const;
  void truncate(int64_t n);  // frees pages past token n

  int64_t n_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t bytes() const { return n_pages() * pool_->page_bytes(); }

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<PageRef> pages_;
};

}  // namespace smartkv
