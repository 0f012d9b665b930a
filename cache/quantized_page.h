// Quantized pages as caches hold them: immutable, reference-counted, and counted in the pool. An indexed page also has
// rows, exact or quantized (kernels/attention.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "kernels/calibrated_page.h"
#include "kernels/quantized_page.h"

namespace smartkv {

// The rows of an indexed page, which it has beside its quantized keys (kernels/attention.h).
struct IndexedRows {
  // Tokens that the page adds to the number of tokens each query reads (KvSegment::read). 0: the page is not indexed.
  int32_t read = 0;
  // Bits of a value in the rows. 0: the rows are dense.
  int32_t bits = 0;
};

// One page of one layer, with all of its KV heads or with fewer. Immutable, so forks share it.
class QuantizedPage {
 public:
  static constexpr int64_t kAllHeads = -1;

  // Encodes `source`, which has n_heads KV heads, as a page with this layout, and counts it in the pool. channel_order
  // is [n_heads, head_dim] or null; the page keeps it alive. If rows.read > 0, the page is indexed and must have all KV
  // heads.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, const kernels::QuantizedLayout& layout,
                std::shared_ptr<const std::vector<uint8_t>> channel_order, const kernels::PageSource& source,
                int64_t n_heads = kAllHeads, IndexedRows rows = {});

  // Encodes `source` as calibrated page i of a sequence. wide: if the table has two tiers, the masks of the wide
  // tokens, [n_kv_heads]; else null.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table, int64_t i,
                const kernels::PageSource& source, const uint64_t* wide = nullptr);
  // Reads a calibrated page that save() wrote.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table, int64_t i,
                StateReader* in);

  // Reads a page that save() wrote. Throws CacheError.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const std::vector<uint8_t>> channel_order,
                StateReader* in, int64_t n_heads = kAllHeads, IndexedRows rows = {});
  // Writes the layout and the bytes, without the channel order.
  void save(StateWriter* out) const;

  // Reads K and V of KV heads [head, head + n_heads) into f32 [n_heads, kPageTokens, head_dim], with their quantization
  // error. The results are there after KvBackend::finish().
  void read(const CacheShape& shape, int64_t head, int64_t n_heads, float* k, float* v) const;
  kernels::KvSegment segment() const;
  const kernels::QuantizedLayout& layout() const { return layout_; }
  const std::shared_ptr<const std::vector<uint8_t>>& channel_order() const { return channel_order_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }
  // Bits of a value, averaged over the channels or tokens, without scales.
  double bits_k() const;
  double bits_v() const;

 private:
  QuantizedPage(const std::shared_ptr<PagePool>& pool, const kernels::QuantizedLayout& layout,
                std::shared_ptr<const std::vector<uint8_t>> channel_order, int64_t n_heads, IndexedRows rows);
  std::byte* row_data() { return data_.data() + n_heads_ * head_stride_; }
  const std::byte* row_data() const { return data_.data() + n_heads_ * head_stride_; }

  QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table, int64_t i);

  int64_t n_heads_;
  IndexedRows indexed_;
  kernels::QuantizedLayout layout_;
  std::shared_ptr<const std::vector<uint8_t>> channel_order_;
  int64_t head_stride_;
  std::shared_ptr<const kernels::WidthTable> table_;  // null unless the page is calibrated
  kernels::MirroredFloats middle_ = {};
  kernels::PageMemory data_;
  PoolCharge charge_;
};

using QuantizedPageRef = std::shared_ptr<const QuantizedPage>;

// Bytes of the pages, and of the pages that also have another holder. Null entries count as 0.
int64_t bytes_of(std::span<const QuantizedPageRef> pages);
int64_t shared_bytes_of(std::span<const QuantizedPageRef> pages);

// Checks that a state's channel order [n_kv_heads, head_dim] names each channel of each KV head once. Throws
// CacheError.
void expect_channel_order(const StateReader& in, const CacheShape& shape, std::span<const uint8_t> order);

// The layout with K and V in 8 bits.
kernels::QuantizedLayout widest_layout(const CacheShape& shape);

// The layout with all of K in k_bits and all of V in v_bits.
kernels::QuantizedLayout uniform_layout(const CacheShape& shape, int k_bits, int v_bits);

// Bits of a value, averaged over the quads. Quads without codes count as 0 bits.
double mean_bits(const kernels::CodeRuns& runs);

// Bytes of a page with this layout: one layer, all KV heads.
int64_t quantized_bytes(const CacheShape& shape, const kernels::QuantizedLayout& layout);
// Bytes of the rows that an indexed page has in addition. 0 if rows.read is 0.
int64_t indexed_bytes(const CacheShape& shape, IndexedRows rows);

}  // namespace smartkv
