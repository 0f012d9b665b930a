#include "lab/training/lifespans.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

namespace smartkv {
namespace {

constexpr int64_t kLifespanQueries = 256;  // queries of one block; bounds memory at group x 256 x length probabilities
constexpr int64_t kColumnsPerTask = 512;

// Observations of one KV head, per token.
struct Watched {
  std::vector<float> rest;  // attention from the queries seen so far, in descending order of position
  int32_t* lifespans;
};

// Adds the queries [first, first + queries), which see `seen` tokens. `p` is f32 [group, queries, seen]: their
// probabilities.
void watch_rest(const torch::Tensor& p, int64_t first, const LifespanOptions& options, Watched& watched) {
  const torch::Tensor strongest = p.amax(0);  // [queries, seen]: the maximum over the group's heads
  const int64_t queries = p.size(1), seen = p.size(2);
  const float* data = strongest.const_data_ptr<float>();
  const auto limit = static_cast<float>(options.rest);
  at::parallel_for(0, seen, kColumnsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = queries - 1; i >= 0; --i) {
      const auto position = static_cast<int32_t>(first + i);
      const int64_t last = std::min(end, position - options.window + 1);
      for (int64_t j = begin; j < last; ++j) {
        watched.rest[j] += data[i * seen + j];
        const int32_t distance = watched.rest[j] > limit ? position - static_cast<int32_t>(j) : 0;
        watched.lifespans[j] = std::max(watched.lifespans[j], distance);
      }
    }
  });
}

// Computes causal attention of one sequence in blocks of queries, and fills in `layer`. Returns [n_heads, length,
// head_dim].
torch::Tensor observe_attention(const AttentionInputs& inputs, const LifespanOptions& options, LayerLifespans& layer) {
  const torch::Tensor q = inputs.q[0], k = inputs.k[0], v = inputs.v[0];
  const int64_t n_kv_heads = k.size(0), length = k.size(1), head_dim = k.size(2), group = q.size(0) / n_kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const int64_t every = options.sampled_every;
  layer.keys = inputs.k_before_rope[0].to(torch::kBFloat16).contiguous();
  layer.lifespans = torch::zeros({n_kv_heads, length}, torch::kInt32);
  if (every > 0) layer.sampled = torch::zeros({n_kv_heads, length / every, length});
  torch::Tensor mixed = torch::empty_like(q);
  for (int64_t head = 0; head < n_kv_heads; ++head) {
    const torch::Tensor heads = q.slice(0, head * group, (head + 1) * group).to(torch::kFloat32) * scale;
    const torch::Tensor keys = k[head].to(torch::kFloat32), values = v[head];
    Watched watched{std::vector<float>(static_cast<size_t>(length)), layer.lifespans[head].data_ptr<int32_t>()};
    for (int64_t first = (length - 1) / kLifespanQueries * kLifespanQueries; first >= 0; first -= kLifespanQueries) {
      const int64_t end = std::min(length, first + kLifespanQueries);
      const torch::Tensor p = causal_probabilities(heads, keys, first, end);
      mixed.slice(0, head * group, (head + 1) * group).slice(1, first, end) =
          torch::matmul(p.to(values.dtype()), values.slice(0, 0, end));
      watch_rest(p, first, options, watched);
      for (int64_t i = first; every > 0 && i < end; ++i) {
        if ((i + 1) % every == 0) layer.sampled[head][i / every].slice(0, 0, end).copy_(p.select(1, i - first).mean(0));
      }
    }
  }
  return mixed;
}

}  // namespace

std::vector<LayerLifespans> observe_lifespans(const TorchLlama& model, const std::vector<int64_t>& tokens,
                                              const LifespanOptions& options) {
  const torch::NoGradGuard no_grad;
  std::vector<LayerLifespans> layers(static_cast<size_t>(model.config().n_layers));
  model.hidden(torch::tensor(tokens).unsqueeze(0), [&](int64_t layer, const AttentionInputs& inputs) {
    return observe_attention(inputs, options, layers[static_cast<size_t>(layer)]).unsqueeze(0);
  });
  return layers;
}

}  // namespace smartkv
