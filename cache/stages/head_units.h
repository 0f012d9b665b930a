// A layer's dense pages, cut into units of kPageTokens tokens of a single KV head: what one place of a page holds, for
// whichever KV head has it. So heads of one layer may hold different numbers of tokens in pages of one kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/state_io.h"

namespace smartkv {

// Slot s of a KV head is token s % kPageTokens of its unit s / kPageTokens. Copies share their pages; a shared page is
// copied before it is written.
class HeadUnits {
 public:
  explicit HeadUnits(const PolicyContext& context);

  int64_t units(int64_t head) const { return static_cast<int64_t>(units_[static_cast<size_t>(head)].size()); }
  int64_t n_units() const;  // of all KV heads
  // The first pages of which every KV head has its own place, in order: segments of all heads, as they are.
  int64_t whole_pages() const;
  // The whole pages, then the KV heads' other units, one head after the other.
  void view(std::vector<kernels::KvSegment>* segments) const;

  // Of a slot, for jobs of the backend that read it.
  kernels::TokenPlace place(int64_t head, int64_t slot) const;
  // The same for those that write it: the page becomes this one's own.
  kernels::TokenPlace own_place(int64_t head, int64_t slot);

  // Gives every KV head so many units, in as few pages as hold them. Its first ones keep what they hold.
  void resize(std::span<const int64_t> units);
  int64_t growth(int64_t more_pages) const;  // bytes that resize() and own_place() allocate at most while so many pages are added

  void save(StateWriter* out) const;
  void load(int64_t most_pages, StateReader* in);  // throws CacheError, also if there are more pages

  int64_t n_pages() const { return pages_.n_pages(); }
  int64_t bytes() const { return pages_.bytes(); }
  int64_t shared_bytes() const { return pages_.shared_bytes(); }

 private:
  int64_t heads() const { return static_cast<int64_t>(units_.size()); }
  int64_t unit_of(int64_t head, int64_t slot) const;
  kernels::PageCopy move(int32_t from, int32_t to);  // of a unit's contents

  std::shared_ptr<PagePool> pool_;
  DenseLayer pages_;
  std::vector<std::vector<int32_t>> units_;  // by KV head: unit u is place u % heads of page u / heads
};

}  // namespace smartkv
