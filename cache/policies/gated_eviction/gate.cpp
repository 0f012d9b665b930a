#include "cache/policies/gated_eviction/gate.h"

#include <algorithm>
#include <string>

#include "cache/policies/gated_eviction/gate_jobs.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

void check(const std::vector<float>& values, int64_t expected, const std::string& what) {
  if (static_cast<int64_t>(values.size()) == expected) return;
  throw CacheError("gate: " + what + ": expected " + std::to_string(expected) + " values, found " +
                   std::to_string(values.size()));
}

// Scores a token by the position at which it expires, given the lifespan that the layer's gate predicts from its key
// before RoPE.
class LifespanScorer final : public PageScorer {
 public:
  LifespanScorer(const PolicyContext& context, const LifespanGate& gate)
      : knows_importance_(gate.has_importance()),
        gate_(upload(*context.pool->backend(), gate.maps(context.first_kv_head(), context.shape.n_kv_heads))) {}
  std::string_view name() const override { return "learned"; }
  bool knows_importance() const override { return knows_importance_; }
  bool needs_angles() const override { return true; }
  void score(const PolicyContext& context, std::span<const TokenScoring> layers) const override {
    score_tokens(*context.pool->backend(), context.threads, context.shape, gate_, layers);
  }
  // The gate predicts how long a token stays useful. The score is until when, so that a token past its lifespan makes
  // room.
  void finish(int64_t first, int64_t n, std::span<float> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = expiry(first + static_cast<int64_t>(i) % n, scores[i]);
  }

 private:
  bool knows_importance_;
  std::shared_ptr<const UploadedGate> gate_;
};

}  // namespace

LifespanGate::LifespanGate(int64_t n_kv_heads, int64_t head_dim, const std::vector<GateLayer>& layers) {
  auto maps = std::make_shared<GateMaps>();
  maps->n_kv_heads = n_kv_heads;
  maps->head_dim = head_dim;
  const int64_t features = maps->importance_features();
  const bool second = !layers.empty() && !layers[0].importance.empty();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    auto of_layer = std::make_shared<GateMaps::Layer>();
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, head_dim);
      const std::string name = "layer " + std::to_string(layer) + ", map " + std::to_string(i);
      check(layers[layer].weight[i], out * in, name + ", weight");
      check(layers[layer].bias[i], out, name + ", bias");
      (*of_layer)[i] = {pack_map(layers[layer].weight[i], out, in), layers[layer].bias[i]};
    }
    maps->layers.push_back(std::move(of_layer));
    const std::string name = "layer " + std::to_string(layer) + ", importance";
    check(layers[layer].importance, second ? n_kv_heads * (features + 1) : 0, name);
    if (second) maps->importance.push_back(layers[layer].importance);
  }
  if (second) maps->importance_heads = n_kv_heads;
  maps_ = std::move(maps);
}

std::shared_ptr<const GateMaps> LifespanGate::maps(int64_t first, int64_t heads) const {
  if (heads == maps_->n_kv_heads) return maps_;
  auto part = std::make_shared<GateMaps>();
  part->n_kv_heads = heads;
  part->head_dim = maps_->head_dim;
  part->layers = maps_->layers;
  part->importance_heads = maps_->importance_heads;
  const int64_t features = maps_->importance_features(), of_keys = features / 2, n = heads * maps_->head_dim;
  for (const std::vector<float>& all : maps_->importance) {
    std::vector<float>& own = part->importance.emplace_back();
    for (int64_t head = 0; head < maps_->importance_heads; ++head) {
      const float* const map = all.data() + head * (features + 1);
      for (const float* const from : {map + first * maps_->head_dim, map + of_keys + first * maps_->head_dim}) {
        own.insert(own.end(), from, from + n);
      }
      own.push_back(first == 0 ? map[features] : 0.0f);
    }
  }
  return part;
}

void LifespanGate::score(ThreadPool* threads, int64_t layer, const float* keys, int64_t n, float* scores) const {
  ThreadPool alone(1);
  gate_scores(threads != nullptr ? *threads : alone, *maps_, layer, keys, n, scores);
}

TokenScorer LifespanGate::scorer(const PolicyContext& context) const {
  return std::make_shared<LifespanScorer>(context, *this);
}

int64_t LifespanGate::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<float>& map : maps_->importance) bytes += static_cast<int64_t>(map.size() * sizeof(float));
  for (const auto& maps : maps_->layers) {
    for (const auto& map : *maps) bytes += map.weight.bytes() + static_cast<int64_t>(map.bias.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace smartkv
