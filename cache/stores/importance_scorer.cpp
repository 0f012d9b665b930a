#include "cache/stores/importance_scorer.h"

#include <algorithm>
#include <utility>

#include "kernels/rope.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class ImportanceScorer final : public PageScorer {
 public:
  explicit ImportanceScorer(std::shared_ptr<const std::vector<ImportanceMap>> maps) : maps_(std::move(maps)) {}
  std::string_view name() const override { return "calibrated"; }
  bool needs_angles() const override { return true; }

  void score(const PolicyContext& context, std::span<const TokenScoring> layers) const override {
    for (const TokenScoring& layer : layers) score_layer(context, layer);
  }

 private:
  void score_layer(const PolicyContext& context, const TokenScoring& layer) const {
    const int64_t heads = context.shape.n_kv_heads, dim = context.shape.head_dim, stride = layer.n * dim;
    std::vector<float> k(static_cast<size_t>(heads * stride)), v(k.size());
    std::vector<kernels::PageRead> reads;
    for (int64_t at = 0; at < layer.n; at += reads.back().n) {
      const int64_t token = layer.first + at, slot = token % kPageTokens;
      reads.push_back({layer.pages[static_cast<size_t>(token / kPageTokens)], 0, heads, slot,
                       std::min(layer.n - at, kPageTokens - slot), k.data() + at * dim, v.data() + at * dim, stride});
    }
    kernels::KvBackend& backend = *context.pool->backend();
    backend.read(context.shape.type, dim, reads);
    backend.finish();
    const int64_t first_map = layer.layer * context.all_kv_heads() + context.first_kv_head();
    context.for_each(heads * std::ssize(reads), [&](int64_t task) {
      const int64_t head = task % heads;
      const kernels::PageRead& read = reads[static_cast<size_t>(task / heads)];
      const int64_t from = (read.k - k.data()) / dim;
      const ImportanceMap& map = (*maps_)[static_cast<size_t>(first_map + head)];
      for (int64_t i = from; i < from + read.n; ++i) {
        float *const key = k.data() + head * stride + i * dim, *const value = v.data() + head * stride + i * dim;
        kernels::unrotate(layer.angles + i * dim, dim, key);
        layer.scores[head * layer.n + i] = map.importance(key, value, dim);
      }
    });
  }

  std::shared_ptr<const std::vector<ImportanceMap>> maps_;
};

}  // namespace

std::shared_ptr<const PageScorer> make_importance_scorer(std::shared_ptr<const std::vector<ImportanceMap>> maps) {
  return std::make_shared<ImportanceScorer>(std::move(maps));
}

}  // namespace smartkv
