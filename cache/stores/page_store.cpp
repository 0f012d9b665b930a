#include "cache/stores/page_store.h"

namespace smartkv {

using kernels::kPageTokens;

int64_t read_prompt_stride(Parameters* parameters, int64_t fallback) {
  const int64_t stride = parameters->integer("prompt_stride", fallback, kPageTokens, int64_t{1} << 24,
                                             "tokens between the boundaries of a prompt; whole pages of 64");
  if (stride % kPageTokens == 0) return stride;
  throw CacheError("kv_cache.prompt_stride: expected a multiple of " + std::to_string(kPageTokens) + ", found " +
                   std::to_string(stride));
}

void PageStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  for (const QuantizedPageRef& page : pages_[static_cast<size_t>(layer)]) segments->push_back(page->segment());
}

void PageStore::positions(int64_t layer, int64_t /*head*/, std::vector<int64_t>* positions) const {
  for (int64_t position = 0; position < entries(layer); ++position) positions->push_back(position);
}

void PageStore::prepare(const StageView& view) {
  const int64_t made = view.leaving() / kPageTokens - n_pages_;
  plan(view, made);
  for (auto& layer : pages_) layer.resize(static_cast<size_t>(n_pages_ + made));
}

void PageStore::take(const StageView& /*view*/, int64_t layer, EvictedTokens* tokens) {
  const int64_t heads = shape().n_kv_heads;
  const auto end = static_cast<int64_t>(pages_[static_cast<size_t>(layer)].size());
  std::vector<kernels::TokenPlace> places(static_cast<size_t>(heads * kPageTokens));
  for (int64_t i = n_pages_; i < end; ++i) {
    for (int64_t row = 0; row < heads * kPageTokens; ++row) {
      const int64_t head = row / kPageTokens, token = (i - n_pages_) * kPageTokens + row % kPageTokens;
      places[static_cast<size_t>(row)] = tokens->place(head, tokens->of(head)[static_cast<size_t>(token)]);
    }
    set_page(layer, i, pack(layer, i, places));
  }
  for (int64_t head = 0; head < heads; ++head) tokens->leave(head, {});
}

void PageStore::finish(const StageView& /*view*/) {
  n_pages_ = static_cast<int64_t>(pages_[0].size());
  end_boundary();
  count_bytes();
}

void PageStore::count_bytes() {
  bytes_ = 0;
  for (const auto& layer : pages_) bytes_ += bytes_of(layer);
}

void PageStore::save(StateWriter* out) const {
  for (const auto& layer : pages_) {
    for (const QuantizedPageRef& page : layer) page->save(out);
  }
}

void PageStore::load(const StageView& view, StateReader* in) {
  n_pages_ = view.tail_first / kPageTokens;
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    auto& pages = pages_[static_cast<size_t>(layer)];
    while (static_cast<int64_t>(pages.size()) < n_pages_) {
      pages.push_back(load_page(layer, static_cast<int64_t>(pages.size()), in));
    }
  }
  count_bytes();
}

QuantizedPageRef PageStore::load_page(int64_t layer, int64_t i, StateReader* in) const {
  return std::make_shared<QuantizedPage>(context_.pool, channel_order(layer, i), in, QuantizedPage::kAllHeads, rows(i));
}

StoreBytes PageStore::bytes_at(const StageView& /*view*/, const Moment& then) const {
  return {.pages = shape().n_layers * layer_bytes(then.left / kPageTokens)};
}

int64_t PageStore::shared_bytes() const {
  int64_t bytes = 0;
  for (const auto& layer : pages_) bytes += shared_bytes_of(layer);
  return bytes;
}

void PageStore::add_stats(const StageView& view, CacheStats* stats) const {
  stats->tokens_kept += entries(0);
  stats->bytes += bytes_;
  if (view.may_share) stats->shared_bytes += shared_bytes();
}

void PageStore::add_details(std::map<std::string, double>* details) const {
  const auto pages = static_cast<double>(n_pages_ * shape().n_layers);
  if (pages == 0) return;
  double k = 0, v = 0;
  for (const auto& layer : pages_) {
    for (const QuantizedPageRef& page : layer) {
      k += page->bits_k();
      v += page->bits_v();
    }
  }
  (*details)["bits_k"] = k / pages;
  (*details)["bits_v"] = v / pages;
}

std::vector<kernels::TokenPlace> tail_places(const CacheShape& shape, const DenseLayer& tail, int64_t i) {
  std::vector<kernels::TokenPlace> places;
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (int64_t t = 0; t < kPageTokens; ++t) places.push_back(tail.place(i * kPageTokens + t, head));
  }
  return places;
}

}  // namespace smartkv
