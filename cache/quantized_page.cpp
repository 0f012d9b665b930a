#include "cache/quantized_page.h"

#include <algorithm>

#include "cache/state_io.h"
#include "kernels/indexed_rows.h"

namespace smartkv {

using kernels::kPageTokens;
using kernels::QuantizedLayout;

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, const QuantizedLayout& layout,
                             std::shared_ptr<const std::vector<uint8_t>> channel_order, int64_t n_heads,
                             IndexedRows rows)
    : n_heads_(n_heads == kAllHeads ? pool->shape().n_kv_heads : n_heads),
      indexed_(rows),
      layout_(layout),
      channel_order_(std::move(channel_order)),
      head_stride_(kernels::quantized_offsets(layout, pool->shape().head_dim).total),
      data_(pool->backend(), static_cast<size_t>(n_heads_ * head_stride_ + indexed_bytes(pool->shape(), rows))),
      charge_(pool, static_cast<int64_t>(data_.size())) {}

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, const QuantizedLayout& layout,
                             std::shared_ptr<const std::vector<uint8_t>> channel_order,
                             const kernels::PageSource& source, int64_t n_heads, IndexedRows rows)
    : QuantizedPage(pool, layout, std::move(channel_order), n_heads, rows) {
  const kernels::PageEncode job{source,
                                n_heads_,
                                layout,
                                channel_order_ == nullptr ? nullptr : channel_order_->data(),
                                data_.data(),
                                head_stride_,
                                indexed_.read > 0 ? row_data() : nullptr,
                                indexed_.bits};
  pool->backend()->encode(pool->shape().type, pool->shape().head_dim, {&job, 1});
}

namespace {

kernels::CodeRuns load_runs(StateReader* in, int64_t columns) {
  kernels::CodeRuns runs;
  for (uint8_t& quads : runs.quads) quads = in->value<uint8_t>();
  runs.dropped = in->value<uint8_t>();
  in->expect(4 * runs.n_quads() == columns, "a width for each column");
  return runs;
}

QuantizedLayout load_layout(StateReader* in, const CacheShape& shape) {
  const kernels::CodeRuns k = load_runs(in, shape.head_dim);
  return {k, load_runs(in, kPageTokens)};
}

}  // namespace

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool,
                             std::shared_ptr<const std::vector<uint8_t>> channel_order, StateReader* in,
                             int64_t n_heads, IndexedRows rows)
    : QuantizedPage(pool, load_layout(in, pool->shape()), std::move(channel_order), n_heads, rows) {
  pool->backend()->upload(in->bytes(data_.size()).data(), data_.size(), data_.data());
}

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table,
                             int64_t i)
    : n_heads_(pool->shape().n_kv_heads),
      head_stride_(0),
      table_(std::move(table)),
      middle_(table_->rotations->middle(i)),
      data_(pool->backend(), static_cast<size_t>(table_->bytes)),
      charge_(pool, table_->bytes) {}

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table,
                             int64_t i, const kernels::PageSource& source, const uint64_t* wide)
    : QuantizedPage(pool, std::move(table), i) {
  kernels::PageEncode job{.source = source, .n_heads = n_heads_, .layout = {}};
  job.blocks = data_.data();
  job.table = table_.get();
  job.middle = middle_;
  job.wide = wide;
  pool->backend()->encode(pool->shape().type, pool->shape().head_dim, {&job, 1});
}

QuantizedPage::QuantizedPage(const std::shared_ptr<PagePool>& pool, std::shared_ptr<const kernels::WidthTable> table,
                             int64_t i, StateReader* in)
    : QuantizedPage(pool, std::move(table), i) {
  pool->backend()->upload(in->bytes(data_.size()).data(), data_.size(), data_.data());
}

double QuantizedPage::bits_k() const {
  return table_ == nullptr ? mean_bits(layout_.k) : table_->mean_bits(&kernels::HeadWidths::k);
}

double QuantizedPage::bits_v() const {
  return table_ == nullptr ? mean_bits(layout_.v) : table_->mean_bits(&kernels::HeadWidths::v);
}

void QuantizedPage::save(StateWriter* out) const {
  if (table_ != nullptr) return data_.backend().download(data_.data(), data_.size(), out->page(data_.size()));
  for (const kernels::CodeRuns* runs : {&layout_.k, &layout_.v}) {
    for (const uint8_t quads : runs->quads) out->value(quads);
    out->value(runs->dropped);
  }
  data_.backend().download(data_.data(), data_.size(), out->page(data_.size()));
}

void QuantizedPage::read(const CacheShape& shape, int64_t head, int64_t n_heads, float* k, float* v) const {
  const kernels::PageRead job{segment(), head, n_heads, 0, kPageTokens, k, v, kPageTokens * shape.head_dim};
  data_.backend().read(shape.type, shape.head_dim, {&job, 1});
}

kernels::KvSegment QuantizedPage::segment() const {
  using Format = kernels::KvSegment::Format;
  if (table_ != nullptr) return kernels::KvSegment::calibrated(data_.data(), table_.get(), middle_);
  return {.format = indexed_.read > 0 ? Format::kIndexed : Format::kQuantized,
          .tokens = kPageTokens,
          .k = data_.data(),
          .v = indexed_.read > 0 ? row_data() : nullptr,
          .head_stride = head_stride_,
          .read = indexed_.read,
          .row_bits = indexed_.bits,
          .quantized = layout_,
          .channel_order = channel_order_ == nullptr ? nullptr : channel_order_->data()};
}

int64_t bytes_of(std::span<const QuantizedPageRef> pages) {
  int64_t bytes = 0;
  for (const QuantizedPageRef& page : pages) bytes += page == nullptr ? 0 : page->bytes();
  return bytes;
}

int64_t shared_bytes_of(std::span<const QuantizedPageRef> pages) {
  int64_t bytes = 0;
  for (const QuantizedPageRef& page : pages) bytes += page != nullptr && page.use_count() > 1 ? page->bytes() : 0;
  return bytes;
}

void expect_channel_order(const StateReader& in, const CacheShape& shape, std::span<const uint8_t> order) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  in.expect(order.size() == static_cast<size_t>(shape.n_kv_heads) * dim, "a channel order for each KV head");
  std::vector<uint8_t> sorted(order.begin(), order.end());
  for (auto head = sorted.begin(); head != sorted.end(); head += shape.head_dim) {
    std::sort(head, head + shape.head_dim);
    for (int64_t i = 0; i < shape.head_dim; ++i) in.expect(head[i] == i, "each channel once");
  }
}

QuantizedLayout widest_layout(const CacheShape& shape) {
  return {kernels::uniform_runs(shape.head_dim, 8), kernels::uniform_runs(kPageTokens, 8)};
}

QuantizedLayout uniform_layout(const CacheShape& shape, int k_bits, int v_bits) {
  return {kernels::uniform_runs(shape.head_dim, k_bits), kernels::uniform_runs(kPageTokens, v_bits)};
}

double mean_bits(const kernels::CodeRuns& runs) {
  double bits = 0;
  for (size_t i = 0; i < runs.quads.size(); ++i) bits += runs.quads[i] * kernels::kCodeBits[i];
  return bits / static_cast<double>(runs.n_quads());
}

int64_t quantized_bytes(const CacheShape& shape, const QuantizedLayout& layout) {
  return shape.n_kv_heads * kernels::quantized_offsets(layout, shape.head_dim).total;
}

int64_t indexed_bytes(const CacheShape& shape, IndexedRows rows) {
  return rows.read == 0 ? 0 : shape.n_kv_heads * kernels::indexed_rows_bytes(shape.type, shape.head_dim, rows.bits);
}

}  // namespace smartkv
