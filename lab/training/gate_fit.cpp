#include "lab/training/gate_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace smartkv {
namespace {

constexpr int64_t kWarmUpSteps = 30;

struct Mlp {
  std::array<torch::Tensor, GateLayer::kDepth> weight, bias;  // [out, in], [out]

  torch::Tensor forward(torch::Tensor x) const {
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      x = torch::linear(i == 0 ? x : torch::relu(x), weight[i], bias[i]);
    }
    return x.squeeze(-1);
  }
};

// Returns an MLP with He initialisation (He et al. 2015). A small last layer makes its output start near 0.
Mlp random_mlp(int64_t head_dim, torch::Generator generator) {
  Mlp mlp;
  for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
    const auto [out, in] = GateLayer::shape(i, head_dim);
    const double gain = i == GateLayer::kDepth - 1 ? 0.1 : std::sqrt(2.0);
    mlp.weight[i] = torch::randn({out, in}, generator) * gain / std::sqrt(static_cast<double>(in));
    mlp.bias[i] = torch::zeros({out});
    mlp.weight[i].set_requires_grad(true);
    mlp.bias[i].set_requires_grad(true);
  }
  return mlp;
}

double learning_rate(int64_t step, int64_t steps, double peak) {
  const double warm_up = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(kWarmUpSteps));
  return peak * warm_up * 0.5 *
         (1.0 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps)));
}

std::vector<float> values(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kFloat32).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

}  // namespace

torch::Tensor gate_deviance(const torch::Tensor& scores, const torch::Tensor& lifespans) {
  const torch::Tensor log_ratio = torch::log1p(lifespans.to(torch::kFloat32)) - scores * std::log(4.0);
  return (torch::expm1(log_ratio) - log_ratio).mean();
}

torch::Tensor constant_score(const torch::Tensor& lifespans) {
  return torch::log1p(lifespans.to(torch::kFloat32).mean()) / std::log(4.0);
}

GateLayer fit_gate(const torch::Tensor& keys, const torch::Tensor& lifespans, const GateFitOptions& options,
                   const std::function<void(double loss)>& progress) {
  const int64_t n = keys.size(0), batches = std::max<int64_t>(1, n / options.batch);
  const torch::Tensor x = keys.to(torch::kFloat32);
  const torch::Tensor mean = x.mean(0), deviation = x.std(0, false) + 1e-6;
  const torch::Tensor input = (x - mean) / deviation;
  const torch::Tensor constant = constant_score(lifespans);
  const torch::Tensor spread = torch::log1p(lifespans.to(torch::kFloat32)).std(false) / std::log(4.0) + 1e-6;
  const double deviance_of_constant = gate_deviance(constant, lifespans).item<double>() + 1e-6;

  auto generator = torch::make_generator<at::CPUGeneratorImpl>(options.seed);
  Mlp mlp = random_mlp(keys.size(1), generator);
  std::vector<torch::Tensor> parameters(mlp.weight.begin(), mlp.weight.end());
  parameters.insert(parameters.end(), mlp.bias.begin(), mlp.bias.end());
  torch::optim::AdamW optimizer(parameters,
                                torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(n, generator);
    double sum = 0;
    for (int64_t batch = 0; batch < batches; ++batch) {
      const double rate = learning_rate(epoch * batches + batch, options.epochs * batches, options.learning_rate);
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(rate);
      const torch::Tensor chosen = order.slice(0, batch * options.batch, (batch + 1) * options.batch);
      const torch::Tensor scores = constant + spread * mlp.forward(input.index_select(0, chosen));
      const torch::Tensor loss = gate_deviance(scores, lifespans.index_select(0, chosen));
      optimizer.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(parameters, 1.0);
      optimizer.step();
      sum += loss.item<double>();
    }
    if (progress) progress(sum / static_cast<double>(batches) / deviance_of_constant);
  }

  const torch::NoGradGuard no_grad;
  mlp.weight[0] = mlp.weight[0] / deviation;
  mlp.bias[0] = mlp.bias[0] - torch::mv(mlp.weight[0], mean);
  mlp.weight.back() = mlp.weight.back() * spread;
  mlp.bias.back() = mlp.bias.back() * spread + constant;
  GateLayer layer;
  for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
    layer.weight[i] = values(mlp.weight[i]);
    layer.bias[i] = values(mlp.bias[i]);
  }
  return layer;
}

torch::Tensor apply_gate(const GateLayer& layer, const torch::Tensor& keys) {
  const torch::NoGradGuard no_grad;
  Mlp mlp;
  for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
    const auto [out, in] = GateLayer::shape(i, keys.size(1));
    mlp.weight[i] = torch::tensor(layer.weight[i]).view({out, in});
    mlp.bias[i] = torch::tensor(layer.bias[i]);
  }
  return mlp.forward(keys.to(torch::kFloat32));
}

}  // namespace smartkv
