#include "engine/model/native_backend.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/model/native_experts.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"

namespace smartkv {
namespace {

using kernels::Epilogue;
using kernels::KvType;

const float* data_of(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

void scale(float* x, int64_t n, double factor) {
  if (factor == 1.0) return;
  for (int64_t i = 0; i < n; ++i) x[i] *= static_cast<float>(factor);
}

class NativeBackend final : public LlamaBackend {
 public:
  NativeBackend(const Weights& weights, LlamaStorage storage, KvType type, ThreadPool& pool,
                const std::function<void(double)>& progress, bool lock)
      : config_(weights.config()),
        type_(type),
        weights_(pack_llama(weights, storage, pool, progress)),
        pool_(pool),
        experts_(config_, type, pool) {
    if (lock) weights_.lock();
  }

  void embed(std::span<const TokenId> tokens) override {
    constexpr int64_t kRows = 16;  // rows per task
    rows_ = static_cast<int64_t>(tokens.size());
    const int64_t hidden = config_.hidden_size;
    x_.grow(bytes(hidden, sizeof(float)));
    normed_.grow(bytes(hidden, element_bytes()));
    gated_.grow(bytes(config_.intermediate_size, element_bytes()));
    pool_.parallel_for((rows_ + kRows - 1) / kRows, [&](int64_t task) {
      for (int64_t row = task * kRows; row < std::min(rows_, (task + 1) * kRows); ++row) {
        float* x = x_.as<float>() + row * hidden;
        kernels::unpack_row(weights_.token_embedding(), tokens[static_cast<size_t>(row)], x);
        scale(x, hidden, config_.embedding_multiplier);
      }
    });
  }

  void project(int64_t layer, float* qkv) override {
    const LlamaLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    norm_input(w.attention_norm);
    const int64_t width = (config_.n_heads + 2 * config_.n_kv_heads) * config_.head_dim;
    int64_t first = 0;
    for (const kernels::PackedMatrix& part : w.qkv) {
      run_linear(part, normed_.data(),
                 {qkv + first, width, Epilogue::kStore, w.qkv_bias.empty() ? nullptr : w.qkv_bias.data() + first});
      first += part.out_features;
    }
  }

  const void* attention_input() const override { return normed_.data(); }
  bool shows_input() const override { return true; }

  void keep_rows(std::span<const RowRange> rows) override {
    const int64_t hidden = config_.hidden_size;
    rows_ = 0;
    for (const RowRange& range : rows) {
      if (range.first != rows_) {
        std::memmove(x_.as<float>() + rows_ * hidden, x_.as<float>() + range.first * hidden,
                     static_cast<size_t>(range.n * hidden) * sizeof(float));
      }
      rows_ += range.n;
    }
  }

  void finish_layer(int64_t layer, const void* attended) override {
    const LlamaLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    project_residual(w.output, attended, w.output_bias, w.attention_output_norm);
    for (int64_t row = 0; watch_ != nullptr && row < rows_; ++row) {
      const float* const x = x_.as<float>() + row * config_.hidden_size;
      watch_(layer, std::inner_product(x, x + config_.hidden_size, x, 0.0f));
    }
    norm_input(w.mlp_norm);
    if (config_.has_experts(layer)) {
      branch_.grow(bytes(config_.hidden_size, sizeof(float)));
      experts_.run(w, normed_.data(), rows_, branch_.as<float>());
      return add_branch(w.mlp_output_norm);
    }
    run_linear(w.gate_up.front(), normed_.data(),
               {gated_.data(), config_.intermediate_size, gated_epilogue(config_.activation), data_of(w.gate_up_bias)});
    project_residual(w.down.front(), gated_.data(), w.down_bias, w.mlp_output_norm);
  }

  void head(float* logits) override {
    norm(weights_.final_norm);
    const std::vector<int32_t>& tokens = weights_.output_tokens;
    if (tokens.empty()) {
      run_linear(weights_.head, normed_.data(), {logits, config_.vocab_size, Epilogue::kStore, nullptr});
    } else {
      run_partial_head(tokens, logits);
    }
    if (config_.logits_divisor == 1.0 && config_.logit_soft_cap == 0.0) return;
    pool_.parallel_for(rows_, [&](int64_t row) {
      float* const of_row = logits + row * config_.vocab_size;
      scale(of_row, config_.vocab_size, 1.0 / config_.logits_divisor);
      if (config_.logit_soft_cap == 0.0) return;
      const auto cap = static_cast<float>(config_.logit_soft_cap);
      for (int64_t i = 0; i < config_.vocab_size; ++i) of_row[i] = cap * std::tanh(of_row[i] / cap);
    });
  }

  void watch_residual(std::function<void(int64_t layer, float squares)> watch) override { watch_ = std::move(watch); }
  int64_t weight_bytes() const override { return weights_.bytes(); }
  bool batch_invariant() const override { return true; }

 private:
  size_t element_bytes() const { return type_ == KvType::kBf16 ? 2 : 4; }
  size_t bytes(int64_t columns, size_t element) const { return static_cast<size_t>(rows_ * columns) * element; }

  // normed_ = RMSNorm(x)
  void norm(const std::vector<float>& weight) {
    kernels::rms_norm(pool_, x_.as<float>(), rows_, config_.hidden_size, weight.data(),
                      static_cast<float>(config_.rms_norm_eps), type_, normed_.data());
  }

  // normed_ = the input of attention or MLP: RMSNorm(x), or x itself if there is no norm of inputs
  void norm_input(const std::vector<float>& weight) {
    if (!weight.empty()) return norm(weight);
    const auto n = static_cast<size_t>(config_.hidden_size);
    pool_.parallel_for(rows_, [&](int64_t row) {
      const float* x = x_.as<float>() + row * config_.hidden_size;
      if (type_ == KvType::kF32) {
        std::copy_n(x, n, normed_.as<float>() + row * config_.hidden_size);
      } else {
        std::transform(x, x + n, normed_.as<uint16_t>() + row * config_.hidden_size, to_bf16);
      }
    });
  }

  void run_linear(const kernels::PackedMatrix& matrix, const void* input, const kernels::LinearOutput& output) {
    kernels::linear(pool_, matrix, {input, rows_, matrix.in_features}, output, linear_scratch_);
  }

  void run_partial_head(const std::vector<int32_t>& tokens, float* logits) {
    const auto n = static_cast<int64_t>(tokens.size());
    outputs_.grow(bytes(n, sizeof(float)));
    run_linear(weights_.head, normed_.data(), {outputs_.as<float>(), n, Epilogue::kStore, nullptr});
    pool_.parallel_for(rows_, [&](int64_t row) {
      float* to = logits + row * config_.vocab_size;
      std::fill_n(to, config_.vocab_size, -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < n; ++i) to[tokens[static_cast<size_t>(i)]] = outputs_.as<float>()[row * n + i];
    });
  }

  // x += multiplier * norm(input W^T). Norm and multiplier apply only if the model has them here.
  void project_residual(const kernels::PackedMatrix& matrix, const void* input, const std::vector<float>& bias,
                        const std::vector<float>& norm_weight) {
    const int64_t n = config_.hidden_size;
    if (norm_weight.empty() && config_.residual_multiplier == 1.0) {
      return run_linear(matrix, input, {x_.data(), n, Epilogue::kAdd, data_of(bias)});
    }
    branch_.grow(bytes(n, sizeof(float)));
    run_linear(matrix, input, {branch_.data(), n, Epilogue::kStore, data_of(bias)});
    add_branch(norm_weight);
  }

  // x += multiplier * norm(branch). Norm and multiplier apply only if the model has them here.
  void add_branch(const std::vector<float>& norm_weight) {
    const bool normed = !norm_weight.empty();
    const int64_t n = config_.hidden_size;
    const auto factor = static_cast<float>(config_.residual_multiplier);
    pool_.parallel_for(rows_, [&](int64_t row) {
      float* y = branch_.as<float>() + row * n;
      float* x = x_.as<float>() + row * n;
      if (normed) kernels::rms_norm(y, n, norm_weight.data(), static_cast<float>(config_.rms_norm_eps), y);
      for (int64_t i = 0; i < n; ++i) x[i] += factor * y[i];
    });
  }

  ModelConfig config_;
  KvType type_;
  LlamaWeights weights_;
  ThreadPool& pool_;
  NativeExperts experts_;
  std::function<void(int64_t layer, float squares)> watch_;

  // State of the current pass. Buffers grow to the size of the largest pass and are never shrunk.
  int64_t rows_ = 0;
  AlignedBuffer x_;        // residual stream, f32 [rows, hidden_size]
  AlignedBuffer normed_;   // [rows, hidden_size]
  AlignedBuffer gated_;    // [rows, intermediate_size]
  AlignedBuffer branch_;   // f32 [rows, hidden_size]: output of attention or MLP before norm and multiplier
  AlignedBuffer outputs_;  // f32 [rows, n_outputs]: output of a head that has rows for some tokens only
  kernels::LinearScratch linear_scratch_;
};

}  // namespace

std::unique_ptr<LlamaBackend> load_native_backend(const Weights& weights, LlamaStorage storage, KvType type,
                                                  ThreadPool& pool, const std::function<void(double)>& progress,
                                                  bool lock) {
  return std::make_unique<NativeBackend>(weights, storage, type, pool, progress, lock);
}

}  // namespace smartkv
