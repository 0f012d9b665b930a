// A store that packs all tokens page by page, in the order of the sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/parameters.h"
#include "cache/quantized_page.h"
#include "cache/stores/token_store.h"

namespace smartkv {

// Tokens between the boundaries of a prompt. With a long stride, whole chunks of a prefill stay dense until they are
// packed together, in parallel. With a short stride, prompts with a common prefix share more of it.
constexpr int64_t kPrefillChunk = 512;
// Measured: docs/notes/2026-11-serving.md, case c.
constexpr int64_t kPromptStride = 128;
// Reads the parameter "prompt_stride", a multiple of 64. Throws CacheError.
int64_t read_prompt_stride(Parameters* parameters, int64_t fallback);

// Base class of stores that keep all tokens: page i holds tokens [64 i, 64 i + 64) of the sequence.
class PageStore : public TokenStore {
 public:
  int64_t entries(int64_t /*layer*/) const override { return n_pages() * kernels::kPageTokens; }
  void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const override;
  void positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const override;
  void prepare(const StageView& view) final;
  void take(const StageView& view, int64_t layer, EvictedTokens* tokens) final;
  void finish(const StageView& view) final;
  // Each page takes page_bytes().
  StoreBytes bytes_at(const StageView& view, const Moment& then) const override;
  void save(StateWriter* out) const override;
  void load(const StageView& view, StateReader* in) override;
  void add_stats(const StageView& view, CacheStats* stats) const override;
  // Adds bits_k and bits_v: the mean width of quantized values.
  void add_details(std::map<std::string, double>* details) const override;

 protected:
  explicit PageStore(const PolicyContext& context)
      : context_(context), pages_(static_cast<size_t>(context.shape.n_layers)) {}

  const PolicyContext& context() const { return context_; }
  const CacheShape& shape() const { return context_.shape; }
  int64_t n_pages() const { return n_pages_; }  // the same in every layer
  const QuantizedPageRef& page(int64_t layer, int64_t i) const {
    return pages_[static_cast<size_t>(layer)][static_cast<size_t>(i)];
  }
  void set_page(int64_t layer, int64_t i, QuantizedPageRef page) {
    pages_[static_cast<size_t>(layer)][static_cast<size_t>(i)] = std::move(page);
  }
  int64_t bytes() const { return bytes_; }  // Sum over all pages.
  // Bytes of pages that also have another holder.
  int64_t shared_bytes() const;
  // Returns the bytes of a layer's first n pages if each takes page_bytes().
  int64_t layer_bytes(int64_t n) const { return n == 0 ? 0 : page_bytes(0) + (n - 1) * page_bytes(1); }

  // Called at a boundary, before `made` new pages of each layer are packed. Decides their layouts, and may narrow
  // existing pages.
  virtual void plan(const StageView& view, int64_t made) { (void)view, (void)made; }
  // Packs page i of a layer from `tokens`, [n_kv_heads, kPageTokens], in order of position. Called for different layers
  // in parallel.
  virtual QuantizedPageRef pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const = 0;
  // Called when the pages of a boundary have been packed.
  virtual void end_boundary() {}
  // Returns the channel order of a layer's page i, which is about to be loaded. Null if it has none.
  virtual std::shared_ptr<const std::vector<uint8_t>> channel_order(int64_t layer, int64_t i) const {
    (void)layer, (void)i;
    return nullptr;
  }
  // Returns the rows of page i if the store's pages are indexed.
  virtual IndexedRows rows(int64_t i) const {
    (void)i;
    return {};
  }
  // Reads page i of a layer.
  virtual QuantizedPageRef load_page(int64_t layer, int64_t i, StateReader* in) const;
  // Returns the bytes of a layer's new page i, or an upper bound. They are the same for all pages but the first.
  virtual int64_t page_bytes(int64_t i) const = 0;

 private:
  void count_bytes();

  PolicyContext context_;
  int64_t n_pages_ = 0;
  int64_t bytes_ = 0;
  std::vector<std::vector<QuantizedPageRef>> pages_;  // by layer
};

// Returns the segment of tail tokens [64 i, 64 i + 64), counted from the sequence's first token.
inline kernels::KvSegment tail_page(const DenseLayer& tail, int64_t i) {
  return tail.segment(i - tail.first() / kernels::kPageTokens, kernels::kPageTokens);
}
// Returns where these tokens are: [n_kv_heads, kPageTokens].
std::vector<kernels::TokenPlace> tail_places(const CacheShape& shape, const DenseLayer& tail, int64_t i);

}  // namespace smartkv
