// Sequences whose older tokens are quantised pages: the exact window stays dense, pages that leave it are packed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/parameters.h"
#include "cache/tailed_sequence.h"
#include "kernels/aligned_buffer.h"
#include "kernels/quantized_page.h"

namespace smartkv {

// One page of one layer, all its KV heads. Immutable, shared by forks.
class QuantizedPage {
 public:
  // f32 rows of each KV head: k, v [n_kv_heads, kPageTokens, head_dim]. `channel_order`: [n_kv_heads, head_dim] or null;
  // the page keeps it alive. Counted in the pool.
  QuantizedPage(const std::shared_ptr<PagePool>& pool, const kernels::QuantizedLayout& layout,
                std::shared_ptr<const std::vector<uint8_t>> channel_order, const float* k, const float* v);

  void read(const CacheShape& shape, float* k, float* v) const;  // as given to the constructor, but for the error
  kernels::KvSegment segment() const;
  const kernels::QuantizedLayout& layout() const { return layout_; }
  const std::shared_ptr<const std::vector<uint8_t>>& channel_order() const { return channel_order_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.size()); }

 private:
  kernels::QuantizedLayout layout_;
  std::shared_ptr<const std::vector<uint8_t>> channel_order_;
  int64_t head_stride_;
  AlignedBuffer data_;
  PoolCharge charge_;
};

// K and V in 8 bits.
kernels::QuantizedLayout widest_layout(const CacheShape& shape);

double mean_bits(const kernels::CodeRuns& runs);

// Bytes of a page of this layout, one layer, all KV heads.
int64_t quantized_bytes(const CacheShape& shape, const kernels::QuantizedLayout& layout);

// Throws CacheError when pages of this shape cannot be quantised.
void check_quantizable(const CacheShape& shape, std::string_view policy);

// The parameter "prompt_stride": tokens between the boundaries of a prompt. A long one leaves whole chunks of a prefill
// dense until they are packed together, in parallel. Throws CacheError.
constexpr int64_t kPromptStride = 512;  // a chunk of a prefill
int64_t read_prompt_stride(Parameters* parameters, int64_t fallback);

class QuantizedSequence : public TailedSequence {
 public:
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  CacheStats stats() const override;
  std::map<std::string, double> details() const override;  // bits_k, bits_v: mean width of the codes

 protected:
  QuantizedSequence(const PolicyContext& context, const Boundaries& boundaries);

  using PageRef = std::shared_ptr<const QuantizedPage>;
  int64_t n_pages() const { return static_cast<int64_t>(pages_[0].size()); }  // the same in every layer
  const PageRef& page(int64_t layer, int64_t i) const { return pages_[static_cast<size_t>(layer)][static_cast<size_t>(i)]; }
  void set_page(int64_t layer, int64_t i, PageRef page);
  int64_t packed_shared_bytes() const;  // of pages that somebody else holds, too
  // The tail's tokens [64 i, 64 i + 64), as QuantizedPage takes them.
  void load_tail_page(int64_t layer, int64_t i, float* k, float* v) const;

  // At a boundary, before `made` pages of each layer are packed. Decides what they will be; may narrow those that are.
  virtual void plan(int64_t made) { (void)made; }
  // Packs page i of a layer, whose tokens are k, v. Called for layers and pages in parallel.
  virtual PageRef quantize(int64_t layer, int64_t i, const float* k, const float* v) const = 0;
  // After the pages of a boundary were packed.
  virtual void end_boundary() {}
  // Of new page i, at most.
  virtual int64_t new_page_bytes(int64_t i) const = 0;
  int64_t compaction_growth(int64_t end) const override;

 private:
  void compact() final;

  int64_t page_bytes_ = 0;
  std::vector<std::vector<PageRef>> pages_;  // by layer; page i holds tokens [64 i, 64 i + 64)
};

}  // namespace smartkv
