#include "cache/policies/gated_eviction/gate_maps.h"

#include <algorithm>
#include <numeric>

#include "kernels/bf16.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

constexpr int64_t kChunk = 512;  // Keys of one pass. Bounds the scratch to 0.8 MB.
constexpr int64_t kValuesPerTask = 16384;

// Converts n values to bf16, after ReLU if kRelu.
template <bool kRelu>
void activate(ThreadPool& threads, const float* x, int64_t n, uint16_t* out) {
  threads.parallel_for((n + kValuesPerTask - 1) / kValuesPerTask, [=](int64_t task) {
    const int64_t end = std::min(n, (task + 1) * kValuesPerTask);
    for (int64_t i = task * kValuesPerTask; i < end; ++i) out[i] = to_bf16(kRelu ? std::max(x[i], 0.0f) : x[i]);
  });
}

}  // namespace

kernels::PackedMatrix pack_map(const std::vector<float>& weight, int64_t out_features, int64_t in_features) {
  constexpr int64_t kLanes = 16;  // Output features that pack_lanes() takes at once.
  kernels::PackedMatrix packed = kernels::make_packed(kernels::WeightType::kBf16, out_features, in_features);
  const int64_t groups = (out_features + kLanes - 1) / kLanes;
  std::vector<float> rows(static_cast<size_t>(groups * kLanes * in_features));
  std::copy(weight.begin(), weight.end(), rows.begin());
  for (int64_t group = 0; group < groups; ++group) {
    kernels::pack_lanes(packed, group, rows.data() + group * kLanes * in_features);
  }
  return packed;
}

void gate_scores(ThreadPool& threads, const GateMaps& gate, int64_t layer, const float* keys, int64_t n,
                 float* scores) {
  const int64_t dim = gate.head_dim, width = std::max(dim, GateMaps::kHidden), chunk = std::min(n, kChunk);
  std::vector<uint16_t> x(static_cast<size_t>(chunk * width));
  std::vector<float> y(static_cast<size_t>(chunk * GateMaps::kHidden));
  kernels::LinearScratch scratch;
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t rows = std::min(chunk, n - first);
    activate<false>(threads, keys + first * dim, rows * dim, x.data());
    for (size_t i = 0; i < GateMaps::kDepth; ++i) {
      const bool last = i == GateMaps::kDepth - 1;
      const auto& [weight, bias] = (*gate.layers[static_cast<size_t>(layer)])[i];
      const kernels::LinearOutput output{
          .out = last ? scores + first : y.data(), .stride = weight.out_features, .bias = bias.data()};
      kernels::linear(threads, weight, {x.data(), rows, weight.in_features}, output, scratch);
      if (!last) activate<true>(threads, y.data(), rows * weight.out_features, x.data());
    }
  }
}

void gate_importance(const GateMaps& gate, int64_t layer, int64_t head, const float* keys, const float* values,
                     int64_t n, int64_t from, int64_t end, float* scores) {
  const int64_t dim = gate.head_dim, features = gate.importance_features();
  const float* map = gate.importance[static_cast<size_t>(layer)].data() + head * (features + 1);
  for (int64_t i = from; i < end; ++i) {
    std::array<float, 16> sums{};  // head_dim is a multiple of 16
    const float* weight = map;
    for (const float* rows : {keys, values}) {
      for (int64_t h = 0; h < gate.n_kv_heads; ++h, weight += dim) {
        const float* row = rows + (h * n + i) * dim;
        for (int64_t d = 0; d < dim; d += 16) {
          for (int64_t j = 0; j < 16; ++j) sums[static_cast<size_t>(j)] += weight[d + j] * row[d + j];
        }
      }
    }
    scores[i] = std::accumulate(sums.begin(), sums.end(), map[features]);
  }
}

}  // namespace smartkv
