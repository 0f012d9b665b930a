#include "cache/quantized/quantized_sequence.h"

#include <algorithm>
#include <string>

namespace smartkv {

using kernels::kPageTokens;
using kernels::QuantizedLayout;

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, const QuantizedLayout& layout,
                             std::shared_ptr<const std::vector<uint8_t>> channel_order, const float* k, const float* v)
    : layout_(layout),
      channel_order_(std::move(channel_order)),
      head_stride_(kernels::quantized_offsets(layout, pool->shape().head_dim).total),
      data_(static_cast<size_t>(pool->shape().n_kv_heads * head_stride_)),
      charge_(pool, static_cast<int64_t>(data_.size())) {
  const CacheShape& shape = pool->shape();
  const int64_t values = kPageTokens * shape.head_dim;
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const uint8_t* order = channel_order_ == nullptr ? nullptr : channel_order_->data() + head * shape.head_dim;
    kernels::quantize_page(layout, shape.head_dim, order, k + head * values, v + head * values,
                           data_.data() + head * head_stride_);
  }
}

void QuantizedPage::read(const CacheShape& shape, float* k, float* v) const {
  const int64_t values = kPageTokens * shape.head_dim;
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const uint8_t* order = channel_order_ == nullptr ? nullptr : channel_order_->data() + head * shape.head_dim;
    kernels::dequantize_page(layout_, shape.head_dim, order, data_.data() + head * head_stride_, k + head * values,
                             v + head * values);
  }
}

kernels::KvSegment QuantizedPage::segment() const {
  kernels::KvSegment segment;
  segment.format = kernels::KvSegment::Format::kQuantized;
  segment.tokens = kPageTokens;
  segment.k = data_.data();
  segment.head_stride = head_stride_;
  segment.quantized = layout_;
  segment.channel_order = channel_order_ == nullptr ? nullptr : channel_order_->data();
  return segment;
}

QuantizedLayout widest_layout(const CacheShape& shape) {
  return {kernels::uniform_runs(shape.head_dim, 8), kernels::uniform_runs(kPageTokens, 8)};
}

double mean_bits(const kernels::CodeRuns& runs) {
  double bits = 0;
  for (size_t i = 0; i < runs.quads.size(); ++i) bits += runs.quads[i] * kernels::kCodeBits[i];
  return bits / static_cast<double>(runs.n_quads());
}

int64_t quantized_bytes(const CacheShape& shape, const QuantizedLayout& layout) {
  return shape.n_kv_heads * kernels::quantized_offsets(layout, shape.head_dim).total;
}

void check_quantizable(const CacheShape& shape, std::string_view policy) {
  if (shape.head_dim % 64 == 0 && shape.head_dim <= 256) return;
  throw CacheError("kv_cache.policy: \"" + std::string(policy) +
                   "\" needs a model whose head_dim is 64, 128, 192 or 256; this one's is " + std::to_string(shape.head_dim));
}

int64_t read_prompt_stride(Parameters* parameters, int64_t fallback) {
  const int64_t stride = parameters->integer("prompt_stride", fallback, kPageTokens, int64_t{1} << 24);
  if (stride % kPageTokens == 0) return stride;
  throw CacheError("kv_cache.prompt_stride: expected a multiple of " + std::to_string(kPageTokens) + ", found " +
                   std::to_string(stride));
}

QuantizedSequence::QuantizedSequence(const PolicyContext& context, const Boundaries& boundaries)
    : TailedSequence(context, boundaries), pages_(static_cast<size_t>(context.shape.n_layers)) {}

void QuantizedSequence::view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const {
  for (const PageRef& page : pages_[static_cast<size_t>(layer)]) segments->push_back(page->segment());
  TailedSequence::view(layer, n_new, segments);
}

void QuantizedSequence::set_page(int64_t layer, int64_t i, PageRef page) {
  pages_[static_cast<size_t>(layer)][static_cast<size_t>(i)] = std::move(page);
}

void QuantizedSequence::load_tail_page(int64_t layer, int64_t i, float* k, float* v) const {
  const int64_t dim = shape().head_dim;
  for (int64_t head = 0; head < shape().n_kv_heads; ++head) {
    for (int64_t t = 0; t < kPageTokens; ++t, k += dim, v += dim) tail(layer).load(i * kPageTokens + t, head, k, v);
  }
}

void QuantizedSequence::compact() {
  const int64_t first = n_pages(), made = boundaries().leaving(tokens()) / kPageTokens - first;
  plan(made);
  for (auto& layer : pages_) layer.resize(static_cast<size_t>(first + made));
  for_each(shape().n_layers * made, [&](int64_t task) {
    const int64_t layer = task / made, i = first + task % made;
    std::vector<float> k(static_cast<size_t>(shape().n_kv_heads * kPageTokens * shape().head_dim)), v(k.size());
    load_tail_page(layer, i, k.data(), v.data());
    set_page(layer, i, quantize(layer, i, k.data(), v.data()));
  });
  drop_tail_before((first + made) * kPageTokens);
  end_boundary();
  page_bytes_ = 0;
  for (const auto& layer : pages_) {
    for (const PageRef& page : layer) page_bytes_ += page->bytes();
  }
}

int64_t QuantizedSequence::compaction_growth(int64_t end) const {
  int64_t bytes = 0, i = n_pages();
  for (int64_t at = next_boundary(); at <= end; at = boundaries().after(at)) {
    for (; i < boundaries().leaving(at) / kPageTokens; ++i) bytes += shape().n_layers * new_page_bytes(i);
  }
  return bytes;
}

int64_t QuantizedSequence::packed_shared_bytes() const {
  int64_t bytes = 0;
  for (const auto& layer : pages_) {
    for (const PageRef& page : layer) bytes += page.use_count() > 1 ? page->bytes() : 0;
  }
  return bytes;
}

CacheStats QuantizedSequence::stats() const {
  CacheStats stats = TailedSequence::stats();
  stats.tokens_kept = stats.tokens;
  stats.bytes += page_bytes_;
  if (may_share()) stats.shared_bytes += packed_shared_bytes();
  return stats;
}

std::map<std::string, double> QuantizedSequence::details() const {
  double k = 0, v = 0;
  for (const auto& layer : pages_) {
    for (const PageRef& page : layer) {
      k += mean_bits(page->layout().k);
      v += mean_bits(page->layout().v);
    }
  }
  const auto pages = static_cast<double>(n_pages() * shape().n_layers);
  if (pages == 0) return {};
  return {{"bits_k", k / pages}, {"bits_v", v / pages}};
}

}  // namespace smartkv
