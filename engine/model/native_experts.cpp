#include "engine/model/native_experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/experts.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

// Returns the biases from number `first` on, or null if there are none.
const float* bias_of(const std::vector<float>& biases, int64_t first) {
  return biases.empty() ? nullptr : biases.data() + first;
}

}  // namespace

kernels::Epilogue gated_epilogue(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return kernels::Epilogue::kSwiGlu;
    case Activation::kGelu: return kernels::Epilogue::kGeGlu;
    case Activation::kClampedSilu: return kernels::Epilogue::kClampedSwiGlu;
  }
  return kernels::Epilogue::kSwiGlu;
}

NativeExperts::NativeExperts(const ModelConfig& config, kernels::KvType type, ThreadPool& pool)
    : config_(config),
      pool_(pool),
      element_bytes_(type == kernels::KvType::kBf16 ? 2 : 4),
      epilogue_(gated_epilogue(config.activation)),
      each_(config.experts_per_token + (config.shared_expert_size > 0 ? 1 : 0)) {}

void NativeExperts::run(const LlamaLayerWeights& weights, const void* x, int64_t rows, float* out) {
  const int64_t hidden = config_.hidden_size, routed = rows * config_.experts_per_token;
  choose(weights, x, rows);
  sort_rows(rows);
  gated_.grow(static_cast<size_t>((routed * config_.expert_size + rows * config_.shared_expert_size) * element_bytes_));
  outputs_.grow(static_cast<size_t>(rows * each_ * hidden) * sizeof(float));
  products_.clear();
  for (const Group& group : groups_) {
    const MlpPlace& mlp = weights.mlps[group.mlp];
    products_.push_back({&weights.gate_up[mlp.gate_up],
                         mlp.gate_up_row,
                         2 * mlp.size,
                         {x, group.rows, hidden},
                         {gated_of(group), mlp.size, epilogue_,
                          bias_of(weights.gate_up_bias, static_cast<int64_t>(group.mlp) * 2 * config_.expert_size)}});
  }
  kernels::linear_groups(pool_, products_, places_, rows, scratch_);
  products_.clear();
  for (const Group& group : groups_) {
    const MlpPlace& mlp = weights.mlps[group.mlp];
    products_.push_back({&weights.down[mlp.down],
                         mlp.down_row,
                         hidden,
                         {gated_of(group), group.rows, mlp.size},
                         {outputs_.as<float>() + group.first * hidden, hidden, kernels::Epilogue::kStore,
                          bias_of(weights.down_bias, static_cast<int64_t>(group.mlp) * hidden)}});
  }
  kernels::linear_groups(pool_, products_, {}, 0, scratch_);
  combine(rows, out);
}

std::byte* NativeExperts::gated_of(const Group& group) {
  const int64_t routed = static_cast<int64_t>(weights_.size());
  const int64_t elements = group.first < routed
                               ? group.first * config_.expert_size
                               : routed * config_.expert_size + (group.first - routed) * config_.shared_expert_size;
  return gated_.data() + elements * element_bytes_;
}

void NativeExperts::choose(const LlamaLayerWeights& weights, const void* x, int64_t rows) {
  const int64_t n = config_.n_experts, k = config_.experts_per_token, hidden = config_.hidden_size;
  logits_.resize(static_cast<size_t>(rows * n));
  shared_.resize(static_cast<size_t>(rows));
  experts_.resize(static_cast<size_t>(rows * k));
  weights_.resize(static_cast<size_t>(rows * k));
  products_.clear();
  products_.push_back({&weights.router,
                       0,
                       n,
                       {x, rows, hidden},
                       {logits_.data(), n, kernels::Epilogue::kStore, bias_of(weights.router_bias, 0)}});
  if (config_.shared_expert_size > 0) {
    products_.push_back({&weights.shared_gate, 0, 1, {x, rows, hidden}, {shared_.data(), 1}});
  }
  kernels::linear_groups(pool_, products_, {}, 0, scratch_);
  constexpr int64_t kRows = 16;  // of a task
  pool_.parallel_for((rows + kRows - 1) / kRows, [&](int64_t task) {
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      kernels::choose_experts(logits_.data() + row * n, n, k, config_.normalized_experts, experts_.data() + row * k,
                              weights_.data() + row * k);
    }
  });
}

// Sorts the rows by expert: sets groups_ and places_.
void NativeExperts::sort_rows(int64_t rows) {
  const int64_t k = config_.experts_per_token;
  std::vector<int32_t>& counts = group_of_;
  counts.assign(static_cast<size_t>(config_.n_experts), 0);
  for (const int32_t expert : experts_) ++counts[static_cast<size_t>(expert)];
  groups_.clear();
  int64_t first = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    const int64_t count = counts[expert];
    if (count == 0) continue;
    group_of_[expert] = static_cast<int32_t>(groups_.size());
    groups_.push_back({expert, first, 0});
    first += count;
  }
  places_.resize(static_cast<size_t>(rows * each_));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const int32_t group = group_of_[static_cast<size_t>(experts_[static_cast<size_t>(row * k + i)])];
      const auto place = static_cast<int32_t>(groups_[static_cast<size_t>(group)].rows++);
      places_[static_cast<size_t>(row * each_ + i)] = {group, place};
    }
  }
  if (each_ == k) return;
  const auto shared = static_cast<int32_t>(groups_.size());
  groups_.push_back({static_cast<size_t>(config_.n_experts), first, rows});
  for (int64_t row = 0; row < rows; ++row) {
    places_[static_cast<size_t>((row + 1) * each_ - 1)] = {shared, static_cast<int32_t>(row)};
  }
}

void NativeExperts::combine(int64_t rows, float* out) {
  const int64_t hidden = config_.hidden_size, k = config_.experts_per_token;
  pool_.parallel_for(rows, [&](int64_t row) {
    float* const y = out + row * hidden;
    std::fill_n(y, hidden, 0.0f);
    for (int64_t i = 0; i < each_; ++i) {
      const kernels::LinearPlace place = places_[static_cast<size_t>(row * each_ + i)];
      const int64_t at = groups_[static_cast<size_t>(place.group)].first + place.row;
      const float* const output = outputs_.as<float>() + at * hidden;
      const float weight = i < k ? weights_[static_cast<size_t>(row * k + i)]
                                 : 1.0f / (1.0f + std::exp(-shared_[static_cast<size_t>(row)]));
      for (int64_t j = 0; j < hidden; ++j) y[j] += weight * output[j];
    }
  });
}

}  // namespace smartkv
