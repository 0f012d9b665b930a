// A page of exact K and V that holds only some of their channels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/page_pool.h"
#include "cache/state_io.h"

namespace smartkv {

// The channels that the cut pages of a layer hold.
struct CutChannels {
  int64_t k = 0, v = 0;                   // Number of channels of K and of V, multiples of 16.
  std::vector<uint8_t> k_order, v_order;  // [n_kv_heads, head_dim]: the channels that are held, then the others.
};
using CutChannelsRef = std::shared_ptr<const CutChannels>;

// Returns the bytes of a page: one layer, all KV heads.
int64_t cut_bytes(const CacheShape& shape, int64_t k_channels, int64_t v_channels);

// One page of one layer, with all of its KV heads. Immutable, shared by forks, counted in the pool.
class CutPage {
 public:
  // Copies the held channels of `page`, a dense page of kPageTokens tokens.
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, const kernels::KvSegment& page);
  // Reads what save() wrote. Throws CacheError.
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, StateReader* in);
  void save(StateWriter* out) const;  // Without the channels' order.

  kernels::KvSegment segment() const;
  const CutChannelsRef& channels() const { return channels_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

 private:
  CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels);

  CutChannelsRef channels_;
  int64_t k_bytes_;           // Bytes of K in a KV head.
  kernels::PageMemory data_;  // For each KV head K, then V.
  int64_t head_stride_;
  PoolCharge charge_;
};

using CutPageRef = std::shared_ptr<const CutPage>;

}  // namespace smartkv
