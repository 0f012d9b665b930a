// The dense pages of a layer, divided into units that are given to KV heads one by one.
//
// A dense page has a place for each KV head. A unit is such a place: kPageTokens tokens of a single KV head, whichever
// one it is given to. So the heads of a layer can hold different numbers of tokens in pages of one kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/state_io.h"

namespace smartkv {

// Slot s of a KV head is token s % kPageTokens of its unit s / kPageTokens. Copies of this object share their pages; a
// shared page is copied before it is written.
class HeadUnits {
 public:
  explicit HeadUnits(const PolicyContext& context);

  int64_t units(int64_t head) const { return static_cast<int64_t>(units_[static_cast<size_t>(head)].size()); }
  int64_t n_units() const;  // Sum over all KV heads.
  // Returns how many of the first pages have unit i of every KV head in the head's own place, where i is the page's
  // number. These pages are segments of all heads, as they are.
  int64_t whole_pages() const;
  // Appends the whole pages, then the other units, one KV head after the other.
  void view(std::vector<kernels::KvSegment>* segments) const;

  // Returns where a slot is, for jobs of the backend that read it.
  kernels::TokenPlace place(int64_t head, int64_t slot) const;
  // Returns where a slot is, for jobs that write it. Copies the page if it is shared.
  kernels::TokenPlace own_place(int64_t head, int64_t slot);

  // Gives every KV head `units` units, in as few pages as hold them. A head's remaining units keep their contents.
  void resize(std::span<const int64_t> units);

  void save(StateWriter* out) const;
  // Reads what save() wrote. Throws CacheError, also if there are more than most_pages pages.
  void load(int64_t most_pages, StateReader* in);

  int64_t n_pages() const { return pages_.n_pages(); }
  int64_t bytes() const { return pages_.bytes(); }
  int64_t shared_bytes() const { return pages_.shared_bytes(); }

 private:
  int64_t heads() const { return static_cast<int64_t>(units_.size()); }
  int64_t unit_of(int64_t head, int64_t slot) const;
  // Returns the job that copies one unit's contents to another. Makes the page of `to` exclusive.
  kernels::PageCopy move(int32_t from, int32_t to);

  std::shared_ptr<PagePool> pool_;
  DenseLayer pages_;
  // By KV head: its units. Unit u is place u % heads of page u / heads.
  std::vector<std::vector<int32_t>> units_;
};

}  // namespace smartkv
