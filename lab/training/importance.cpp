#include "lab/training/importance.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace smartkv {
namespace {

constexpr int64_t kImportanceQueries = 256;  // queries of one block
constexpr double kLeastLook = 1e-6;          // added to an importance before the logarithm

// Computes causal attention in blocks of queries. Returns [n_heads, length, head_dim]. Raises `looks`, f32 [n_heads,
// n], to the most attention that queries from `from` on pay to each of the first n tokens.
torch::Tensor watch_looks(const AttentionInputs& inputs, int64_t n, int64_t from, torch::Tensor looks) {
  const torch::Tensor q = inputs.q[0], k = inputs.k[0], v = inputs.v[0];
  const int64_t group = q.size(0) / k.size(0), length = q.size(1);
  const float scale = 1.0f / std::sqrt(static_cast<float>(q.size(2)));
  torch::Tensor mixed = torch::empty_like(q);
  for (int64_t head = 0; head < q.size(0); ++head) {
    const torch::Tensor queries = q[head].to(torch::kFloat32) * scale, keys = k[head / group].to(torch::kFloat32);
    for (int64_t first = 0; first < length; first += kImportanceQueries) {
      const int64_t end = std::min(length, first + kImportanceQueries);
      const torch::Tensor p = causal_probabilities(queries, keys, first, end);
      mixed[head].slice(0, first, end) = torch::matmul(p.to(v.dtype()), v[head / group].slice(0, 0, end));
      if (end <= from) continue;
      const torch::Tensor late = p.slice(0, std::max<int64_t>(0, from - first)).slice(1, 0, n);
      looks[head] = torch::maximum(looks[head], late.amax(0));
    }
  }
  return mixed;
}

}  // namespace

ImportanceFit::ImportanceFit(const ModelConfig& config) : config_(config) {
  const int64_t features = GateLayer::importance_features(config.n_kv_heads, config.head_dim) + 1;
  const auto n_layers = static_cast<size_t>(config.n_layers);
  for (size_t layer = 0; layer < n_layers; ++layer) {
    gram_.push_back(torch::zeros({features, features}, torch::kFloat64));
    rhs_.push_back(torch::zeros({features, config.n_kv_heads}, torch::kFloat64));
  }
}

std::vector<ImportanceFit::Observed> ImportanceFit::observe_layers(const TorchLlama& model,
                                                                   const std::vector<int64_t>& window,
                                                                   const std::vector<int64_t>& request) const {
  const torch::NoGradGuard no_grad;
  const auto n = static_cast<int64_t>(window.size());
  std::vector<int64_t> tokens(window);
  tokens.insert(tokens.end(), request.begin(), request.end());
  tokens.insert(tokens.end(), window.begin(), window.end());
  const int64_t kv = config_.n_kv_heads, dim = config_.head_dim, group = config_.n_heads / kv;
  std::vector<Observed> layers;
  model.hidden(torch::tensor(tokens).unsqueeze(0), [&](int64_t layer, const AttentionInputs& inputs) {
    const torch::Tensor looks = torch::zeros({config_.n_heads, n});
    const torch::Tensor mixed = watch_looks(inputs, n, n, looks);
    const torch::Tensor keys = inputs.k_before_rope[0].slice(1, 0, n).to(torch::kFloat32);
    const torch::Tensor values = inputs.v[0].slice(1, 0, n).to(torch::kFloat32);
    // Weigh by what a head adds to the residual stream if it attends to one token only.
    const torch::Tensor output = model.tensor("model.layers." + std::to_string(layer) + ".self_attn.o_proj.weight")
                                     .to(torch::kFloat32)
                                     .view({-1, config_.n_heads, dim});
    std::vector<torch::Tensor> labels;
    for (int64_t head = 0; head < kv; ++head) {
      torch::Tensor most = torch::zeros({n});
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        most = torch::maximum(most, looks[h] * torch::matmul(values[head], output.select(1, h).t()).norm(2, -1));
      }
      labels.push_back((most + kLeastLook).log());
    }
    const torch::Tensor features = torch::cat({keys.transpose(0, 1).reshape({n, kv * dim}),
                                               values.transpose(0, 1).reshape({n, kv * dim}), torch::ones({n, 1})},
                                              1);
    layers.push_back({features.to(torch::kFloat64), torch::stack(labels, 1).to(torch::kFloat64)});
    return mixed.unsqueeze(0);
  });
  return layers;
}

void ImportanceFit::observe(const TorchLlama& model, const std::vector<int64_t>& window,
                            const std::vector<int64_t>& request) {
  const std::vector<Observed> layers = observe_layers(model, window, request);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    gram_[layer] += torch::matmul(layers[layer].features.t(), layers[layer].features);
    rhs_[layer] += torch::matmul(layers[layer].features.t(), layers[layer].labels);
  }
}

std::vector<std::vector<float>> ImportanceFit::fit(double ridge) const {
  std::vector<std::vector<float>> maps;
  for (size_t layer = 0; layer < gram_.size(); ++layer) {
    const torch::Tensor gram = gram_[layer].clone();
    gram.diagonal().slice(0, 0, gram.size(0) - 1) *= 1 + ridge;  // the constant is not penalised
    const torch::Tensor map = torch::linalg_solve(gram, rhs_[layer], true).t().to(torch::kFloat32).contiguous();
    maps.emplace_back(map.const_data_ptr<float>(), map.const_data_ptr<float>() + map.numel());
  }
  return maps;
}

double ImportanceFit::explained(const TorchLlama& model, const std::vector<int64_t>& window,
                                const std::vector<int64_t>& request,
                                const std::vector<std::vector<float>>& maps) const {
  const std::vector<Observed> layers = observe_layers(model, window, request);
  double sum = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto& [features, labels] = layers[layer];
    const torch::Tensor map = torch::tensor(maps[layer]).view({labels.size(1), features.size(1)}).to(torch::kFloat64);
    const torch::Tensor error = (torch::matmul(features, map.t()) - labels).pow(2).mean(0);
    sum += (1 - error / labels.var(0, false)).mean().item<double>();
  }
  return sum / static_cast<double>(layers.size());
}

}  // namespace smartkv
