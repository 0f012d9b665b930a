// Pages of codes, as caches hold them, with the exact rows beside them or without: immutable, reference-counted, counted in the
// pool.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cache/page_pool.h"
#include "kernels/quantized_page.h"

namespace smartkv {

// What an indexed page has beside its codes (kernels/attention.h).
struct IndexedRows {
  int32_t read = 0;  // of its tokens, by each query; 0: there are no rows
  int32_t bits = 0;  // of the rows' codes; 0: dense rows
};

// One page of one layer, of all its KV heads or of fewer. Immutable, shared by forks.
class QuantizedPage {
 public:
  static constexpr int64_t kAllHeads = -1;

  // `source`: of n_heads KV heads. `channel_order`: [n_heads, head_dim] or null; the page keeps it alive. Counted in the pool.
  // rows.read > 0: an indexed page, of all heads.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, const kernels::QuantizedLayout& layout,
                std::shared_ptr<const std::vector<uint8_t>> channel_order, const kernels::PageSource& source,
                int64_t n_heads = kAllHeads, IndexedRows rows = {});

  // What save() wrote. Throws CacheError.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const std::vector<uint8_t>> channel_order,
                StateReader* in, int64_t n_heads = kAllHeads, IndexedRows rows = {});
  void save(StateWriter* out) const;  // without the channel order

  // K and V of KV heads [head, head + n_heads), as given to the constructor but for the error: f32 [n_heads, kPageTokens,
  // head_dim]. There after KvBackend::finish().
  void read(const CacheShape& shape, int64_t head, int64_t n_heads, float* k, float* v) const;
  kernels::KvSegment segment() const;
  const kernels::QuantizedLayout& layout() const { return layout_; }
  const std::shared_ptr<const std::vector<uint8_t>>& channel_order() const { return channel_order_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

 private:
  QuantizedPage(const std::shared_ptr<PagePool>& pool, const kernels::QuantizedLayout& layout,
                std::shared_ptr<const std::vector<uint8_t>> channel_order, int64_t n_heads, IndexedRows rows);
  std::byte* row_data() { return data_.data() + n_heads_ * head_stride_; }
  const std::byte* row_data() const { return data_.data() + n_heads_ * head_stride_; }

  int64_t n_heads_;
  IndexedRows indexed_;
  kernels::QuantizedLayout layout_;
  std::shared_ptr<const std::vector<uint8_t>> channel_order_;
  int64_t head_stride_;
  kernels::PageMemory data_;
  PoolCharge charge_;
};

using QuantizedPageRef = std::shared_ptr<const QuantizedPage>;

// Bytes of the pages, and of those that somebody else holds, too. Null: no page.
int64_t bytes_of(std::span<const QuantizedPageRef> pages);
int64_t shared_bytes_of(std::span<const QuantizedPageRef> pages);

// That a state's channel order [n_kv_heads, head_dim] names each channel of each KV head once. Throws CacheError.
void expect_channel_order(const StateReader& in, const CacheShape& shape, std::span<const uint8_t> order);

// K and V in 8 bits.
kernels::QuantizedLayout widest_layout(const CacheShape& shape);

// K and V in so many bits.
kernels::QuantizedLayout uniform_layout(const CacheShape& shape, int k_bits, int v_bits);

double mean_bits(const kernels::CodeRuns& runs);

// Bytes of a page of this layout, one layer, all KV heads.
int64_t quantized_bytes(const CacheShape& shape, const kernels::QuantizedLayout& layout);
// And of its rows, where it is indexed.
int64_t indexed_bytes(const CacheShape& shape, IndexedRows rows);

}  // namespace smartkv
