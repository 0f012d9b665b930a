#include "cache/policies/channel_packed/cut_page.h"

namespace smartkv {

using kernels::kPageTokens;

int64_t cut_bytes(const CacheShape& shape, int64_t k_channels, int64_t v_channels) {
  const int64_t element = shape.type == kernels::KvType::kBf16 ? 2 : 4;
  return shape.n_kv_heads * kPageTokens * (k_channels + v_channels) * element;
}

CutPage::CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels)
    : channels_(std::move(channels)),
      k_bytes_(cut_bytes(pool->shape(), channels_->k, 0) / pool->shape().n_kv_heads),
      data_(pool->backend(), static_cast<size_t>(cut_bytes(pool->shape(), channels_->k, channels_->v))),
      head_stride_(bytes() / pool->shape().n_kv_heads),
      charge_(pool, bytes()) {}

CutPage::CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, const kernels::KvSegment& page)
    : CutPage(pool, std::move(channels)) {
  const CacheShape& shape = pool->shape();
  const kernels::PageCut job{page, shape.n_kv_heads, segment(), data_.data(), data_.data() + k_bytes_};
  data_.backend().cut(shape.type, shape.head_dim, {&job, 1});
}

CutPage::CutPage(const std::shared_ptr<PagePool>& pool, CutChannelsRef channels, StateReader* in)
    : CutPage(pool, std::move(channels)) {
  const std::span<const char> bytes = in->bytes(data_.size());
  data_.backend().upload(bytes.data(), bytes.size(), data_.data());
}

void CutPage::save(StateWriter* out) const {
  data_.backend().download(data_.data(), data_.size(), out->page(data_.size()));
}

kernels::KvSegment CutPage::segment() const {
  return {.format = kernels::KvSegment::Format::kCut,
          .tokens = kPageTokens,
          .k = data_.data(),
          .v = data_.data() + k_bytes_,
          .head_stride = head_stride_,
          .channel_order = channels_->k_order.data(),
          .value_order = channels_->v_order.data(),
          .k_channels = static_cast<int32_t>(channels_->k),
          .v_channels = static_cast<int32_t>(channels_->v)};
}

}  // namespace smartkv
