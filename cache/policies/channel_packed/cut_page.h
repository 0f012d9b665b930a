// A page of exact K and V with some of their channels only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_pool.h"
#include "cache/state_io.h"

namespace smartkv {

// Which channels the cut pages of a layer hold.
struct CutChannels {
  int64_t k = 0, v = 0;                   // how many, multiples of 16
  std::vector<uint8_t> k_order, v_order;  // [n_kv_heads, head_dim]: the channels that are held, then the others
};
using CutChannelsRef = std::shared_ptr<const CutChannels>;

// Bytes of a page, one layer, all KV heads.
int64_t cut_bytes(const CacheShape& shape, int64_t k_channels, int64_t v_channels);

// One page of one layer, of all its KV heads. Immutable, shared by forks, counted in the pool.
class CutPage {
 public:
  // `page`: dense, of kPageTokens tokens.
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, const kernels::KvSegment& page);
  // Reads what save() wrote. Throws CacheError.
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, StateReader* in);
  void save(StateWriter* out) const;  // without the channels

  kernels::KvSegment segment() const;
  const CutChannelsRef& channels() const { return channels_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

 private:
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels);

  CutChannelsRef channels_;
  int64_t k_bytes_;  // of a KV head
  kernels::PageMemory data_;  // [n_kv_heads], K, then V
  int64_t head_stride_;
  PoolCharge charge_;
};

using CutPageRef = std::shared_ptr<const CutPage>;

}  // namespace smartkv
