#include "cache/stores/tail_scores.h"

#include <algorithm>

namespace smartkv {

const HiddenScorer* hidden_scorer(std::span<const std::unique_ptr<TokenStore>> stores) {
  for (const auto& store : stores) {
    if (const HiddenScorer* const scorer = store->hidden_scorer()) return scorer;
  }
  return nullptr;
}

TailScores::TailScores(const PolicyContext& context, const HiddenScorer* scorer)
    : context_(context),
      scorer_(scorer),
      layers_(scorer == nullptr ? 0 : static_cast<size_t>(context.shape.n_layers)),
      charge_(context.pool) {}

int64_t TailScores::bytes_of(const CacheShape& shape, int64_t n) {
  return n * shape.n_layers * shape.n_kv_heads * static_cast<int64_t>(sizeof(float));
}

void TailScores::resize(int64_t n) {
  if (scorer_ == nullptr) return;
  const int64_t tokens = whole_pages(n - first_);
  for (std::vector<float>& layer : layers_) layer.resize(static_cast<size_t>(tokens * heads()));
  charge_.set(bytes_of(context_.shape, tokens));
}

void TailScores::reserve(int64_t n) {
  resize(n);
  scored_ = 0;
}

void TailScores::score(int64_t layer, int64_t position, const void* rows, int64_t n) {
  float* const scores = layers_[static_cast<size_t>(layer)].data() + (position - first_) * heads();
  scorer_->score(context_, layer, rows, n, scores);
  scored_ += n;
}

void TailScores::check(int64_t n) const {
  if (scorer_ == nullptr || scored_ == n * context_.shape.n_layers) return;
  throw CacheError("show_hidden: expected " + std::to_string(n) + " tokens in each of " +
                   std::to_string(context_.shape.n_layers) + " layers, found " + std::to_string(scored_) + " in all");
}

void TailScores::read(int64_t layer, int64_t position, int64_t n, float* scores) const {
  const float* const from = layers_[static_cast<size_t>(layer)].data() + (position - first_) * heads();
  for (int64_t head = 0; head < heads(); ++head) {
    for (int64_t i = 0; i < n; ++i) scores[head * n + i] = from[i * heads() + head];
  }
}

void TailScores::truncate(int64_t n) { resize(std::max(n, first_)); }

void TailScores::drop_before(int64_t n) {
  for (std::vector<float>& layer : layers_) {
    layer.erase(layer.begin(), layer.begin() + (n - first_) * heads());
    layer.shrink_to_fit();
  }
  charge_.set(charge_.bytes() - (scorer_ == nullptr ? 0 : bytes_of(context_.shape, n - first_)));
  first_ = n;
}

void TailScores::save(int64_t n, StateWriter* out) const {
  for (const std::vector<float>& layer : layers_) {
    out->bytes(layer.data(), static_cast<size_t>((n - first_) * heads()) * sizeof(float));
  }
}

void TailScores::load(int64_t first, int64_t n, StateReader* in) {
  first_ = first;
  resize(n);
  for (std::vector<float>& layer : layers_) {
    in->bytes(layer.data(), static_cast<size_t>((n - first) * heads()) * sizeof(float));
  }
}

}  // namespace smartkv
