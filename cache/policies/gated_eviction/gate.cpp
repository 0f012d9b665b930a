#include "cache/policies/gated_eviction/gate.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "cache/sequence_cache.h"
#include "kernels/bf16.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

constexpr int64_t kChunk = 512;  // keys of one pass: bounds the scratch, 0.8 MB
constexpr int64_t kLanes = 16;   // output features that pack_lanes takes at once
constexpr int64_t kValuesPerTask = 16384;

void check(const std::vector<float>& values, int64_t expected, const std::string& what) {
  if (static_cast<int64_t>(values.size()) == expected) return;
  throw CacheError("gate: " + what + ": expected " + std::to_string(expected) + " values, found " +
                   std::to_string(values.size()));
}

kernels::PackedMatrix pack(const std::vector<float>& weight, int64_t out_features, int64_t in_features) {
  kernels::PackedMatrix packed = kernels::make_packed(kernels::WeightType::kBf16, out_features, in_features);
  const int64_t groups = (out_features + kLanes - 1) / kLanes;
  std::vector<float> rows(static_cast<size_t>(groups * kLanes * in_features));
  std::copy(weight.begin(), weight.end(), rows.begin());
  for (int64_t group = 0; group < groups; ++group) {
    kernels::pack_lanes(packed, group, rows.data() + group * kLanes * in_features);
  }
  return packed;
}

// bf16 of n values, after ReLU or as they are.
template <bool kRelu>
void activate(ThreadPool& threads, const float* x, int64_t n, uint16_t* out) {
  threads.parallel_for((n + kValuesPerTask - 1) / kValuesPerTask, [=](int64_t task) {
    const int64_t end = std::min(n, (task + 1) * kValuesPerTask);
    for (int64_t i = task * kValuesPerTask; i < end; ++i) out[i] = to_bf16(kRelu ? std::max(x[i], 0.0f) : x[i]);
  });
}

}  // namespace

Gate::Gate(int64_t n_kv_heads, int64_t head_dim, const std::vector<GateLayer>& layers)
    : head_dim_(head_dim), importance_features_(GateLayer::importance_features(n_kv_heads, head_dim)) {
  const bool second = !layers.empty() && !layers[0].importance.empty();
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    auto& maps = layers_.emplace_back();
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, head_dim);
      const std::string name = "layer " + std::to_string(layer) + ", map " + std::to_string(i);
      check(layers[layer].weight[i], out * in, name + ", weight");
      check(layers[layer].bias[i], out, name + ", bias");
      maps[i] = {pack(layers[layer].weight[i], out, in), layers[layer].bias[i]};
    }
    const std::string name = "layer " + std::to_string(layer) + ", importance";
    check(layers[layer].importance, second ? n_kv_heads * (importance_features_ + 1) : 0, name);
    if (second) importance_.push_back(layers[layer].importance);
  }
}

void Gate::score(ThreadPool* threads, int64_t layer, const float* keys, int64_t n, float* scores) const {
  ThreadPool alone(1);
  ThreadPool& pool = threads != nullptr ? *threads : alone;
  const int64_t width = std::max(head_dim_, GateLayer::kHidden);
  const int64_t chunk = std::min(n, kChunk);
  std::vector<uint16_t> x(static_cast<size_t>(chunk * width));
  std::vector<float> y(static_cast<size_t>(chunk * GateLayer::kHidden));
  kernels::LinearScratch scratch;
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t rows = std::min(chunk, n - first);
    activate<false>(pool, keys + first * head_dim_, rows * head_dim_, x.data());
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, head_dim_);
      const bool last = i == GateLayer::kDepth - 1;
      const Map& map = layers_[static_cast<size_t>(layer)][i];
      kernels::LinearOutput output;
      output.out = last ? scores + first : y.data();
      output.stride = out;
      output.bias = map.bias.data();
      kernels::linear(pool, map.weight, {x.data(), rows, in}, output, scratch);
      if (!last) activate<true>(pool, y.data(), rows * out, x.data());
    }
  }
}

void Gate::importance(int64_t layer, int64_t head, const TokenRows& rows, int64_t from, int64_t end, float* scores) const {
  const float* map = importance_[static_cast<size_t>(layer)].data() + head * (importance_features_ + 1);
  const int64_t of_keys = importance_features_ / 2;
  for (int64_t i = from; i < end; ++i) {
    std::array<float, 16> sums{};  // head_dim is a multiple of 16
    for (const bool is_value : {false, true}) {
      const float* weight = map + (is_value ? of_keys : 0) + rows.first * head_dim_;
      for (int64_t h = 0; h < rows.heads; ++h, weight += head_dim_) {
        const float* row = (is_value ? rows.values : rows.keys) + (h * rows.n + i) * head_dim_;
        for (int64_t d = 0; d < head_dim_; d += 16) {
          for (int64_t j = 0; j < 16; ++j) sums[static_cast<size_t>(j)] += weight[d + j] * row[d + j];
        }
      }
    }
    scores[i] = std::accumulate(sums.begin(), sums.end(), rows.first == 0 ? map[importance_features_] : 0.0f);
  }
}

int64_t Gate::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<float>& map : importance_) bytes += static_cast<int64_t>(map.size() * sizeof(float));
  for (const auto& maps : layers_) {
    for (const Map& map : maps) bytes += map.weight.bytes() + static_cast<int64_t>(map.bias.size() * sizeof(float));
  }
  return bytes;
}

}  // namespace smartkv
