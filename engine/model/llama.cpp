#include "engine/model/llama.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>

#include "engine/model/llama_weights.h"
#include "engine/model/rope.h"
#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace smartkv {
namespace {

using kernels::Epilogue;
using kernels::KvType;
using kernels::WeightType;

KvType activation_type(const LlamaOptions& options) {
  if (options.dtype == "auto") return options.weights == "f32" ? KvType::kF32 : KvType::kBf16;
  if (options.dtype == "bf16") return KvType::kBf16;
  if (options.dtype == "f32") return KvType::kF32;
  throw ModelError("dtype: expected auto, bf16 or f32, found \"" + options.dtype + "\"");
}

void scale_rope(const std::string& scaling, double context, double own_context, RopeConfig* rope) {
  if (scaling == "linear") {
    rope->scaling = RopeScaling::kLinear;
  } else if (scaling == "dynamic") {
    rope->scaling = RopeScaling::kDynamic;
  } else if (scaling == "yarn") {
    rope->scaling = RopeScaling::kYarn;
  } else {
    throw ModelError("rope_scaling: expected none, linear, dynamic or yarn, found \"" + scaling + "\"");
  }
  rope->factor = context / own_context;
  rope->original_context = static_cast<int64_t>(own_context);
  rope->magnitude = scaling == "yarn" ? 0.1 * std::log(rope->factor) + 1 : 1;
}

ModelConfig served_config(ModelConfig config, const LlamaOptions& options) {
  if (options.rope_scaling != "none" && options.context_length > config.context_length) {
    scale_rope(options.rope_scaling, static_cast<double>(options.context_length), static_cast<double>(config.context_length),
               &config.rope);
  }
  if (options.context_length > 0) config.context_length = options.context_length;
  if (config.sliding_window > 0 && config.context_length > config.sliding_window) {
    throw ModelError(config.name + ": sliding_window: attention over a window is not supported; expected a " +
                     "context_length of at most " + std::to_string(config.sliding_window) + ", found " +
                     std::to_string(config.context_length));
  }
  return config;
}

class Llama final : public Model {
 public:
  Llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool, const std::function<void(double)>& progress)
      : config_(served_config(weights.config(), options)),
        type_(activation_type(options)),
        weights_(pack_llama(weights, llama_weight_type(options), pool, progress)),
        rope_(config_.rope, config_.head_dim, config_.context_length),
        query_scale_(config_.attention_multiplier > 0
                         ? static_cast<float>(config_.attention_multiplier * std::sqrt(static_cast<double>(config_.head_dim)))
                         : 1.0f),
        pool_(pool) {}

  const ModelConfig& config() const override { return config_; }
  void rope_angles(int64_t position, float* cos, float* sin) const override { rope_.angles(position, cos, sin); }
  int64_t weight_bytes() const override { return weights_.bytes(); }

  void forward(std::span<const SequenceInput> batch, float* logits) override {
    begin(batch);
    for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
      const LlamaLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
      attend(batch, layer, w);
      if (rows_ == 0) continue;
      project_residual(w.output, attended_, w.output_bias, w.attention_norm);
      norm_input(w.mlp_norm);
      run_linear(w.gate_up, normed_, {gated_.data(), config_.intermediate_size, Epilogue::kSwiGlu, bias(w.gate_up_bias)});
      project_residual(w.down, gated_, w.down_bias, w.mlp_norm);
    }
    if (rows_ > 0) {
      norm(weights_.final_norm);
      run_head(logits);
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      guard(batch, i, [&](SequenceCache& cache) { cache.advance(static_cast<int64_t>(batch[i].tokens.size())); });
    }
    tell_failures(batch);
  }

 private:
  // Consecutive rows of one sequence: the unit of work between the products.
  struct Piece {
    int64_t input, first, n, row;
  };

  // f(cache) of an input that has not failed; what it throws is the input's failure. The calling thread only.
  template <typename F>
  void guard(std::span<const SequenceInput> batch, size_t i, const F& f) {
    if (failures_[i] != nullptr) return;
    try {
      f(*batch[i].cache);
    } catch (...) {
      failures_[i] = std::current_exception();
    }
  }
  bool failed(size_t i) const { return failures_[i] != nullptr; }
  void tell_failures(std::span<const SequenceInput> batch) {
    std::exception_ptr untold;
    for (size_t i = 0; i < batch.size(); ++i) {
      if (!failed(i)) continue;
      if (batch[i].failure != nullptr) {
        *batch[i].failure = failures_[i];
      } else if (untold == nullptr) {
        untold = failures_[i];
      }
      failures_[i] = nullptr;
    }
    if (untold != nullptr) std::rethrow_exception(untold);
  }

  int64_t qkv_width() const { return (config_.n_heads + 2 * config_.n_kv_heads) * config_.head_dim; }
  int64_t element_bytes() const { return type_ == KvType::kBf16 ? 2 : 4; }
  static const float* bias(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

  // Sizes the buffers, looks up embeddings and angles, reserves room in the caches.
  void begin(std::span<const SequenceInput> batch) {
    constexpr int64_t kPieceRows = 16;
    pieces_.clear();
    rows_ = 0;
    failures_.assign(batch.size(), nullptr);
    for (size_t i = 0; i < batch.size(); ++i) {
      const int64_t n = static_cast<int64_t>(batch[i].tokens.size());
      for (int64_t first = 0; first < n; first += kPieceRows) {
        pieces_.push_back({static_cast<int64_t>(i), first, std::min(kPieceRows, n - first), rows_ + first});
      }
      rows_ += n;
      guard(batch, i, [n](SequenceCache& cache) { cache.reserve(n); });
    }
    const size_t rows = static_cast<size_t>(rows_), hidden = static_cast<size_t>(config_.hidden_size);
    const size_t element = static_cast<size_t>(element_bytes()), half = static_cast<size_t>(config_.head_dim / 2);
    x_.grow(rows * hidden * sizeof(float));
    normed_.grow(rows * hidden * element);
    qkv_.grow(rows * static_cast<size_t>(qkv_width()) * sizeof(float));
    attended_.grow(rows * static_cast<size_t>(config_.n_heads * config_.head_dim) * element);
    gated_.grow(rows * static_cast<size_t>(config_.intermediate_size) * element);
    angles_.grow(rows * 2 * half * sizeof(float));
    pool_.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t p) {
      const Piece& piece = pieces_[static_cast<size_t>(p)];
      const SequenceInput& input = batch[static_cast<size_t>(piece.input)];
      for (int64_t i = 0; i < piece.n; ++i) {
        const int64_t row = piece.row + i;
        float* x = x_.as<float>() + row * config_.hidden_size;
        kernels::unpack_row(weights_.token_embedding(), input.tokens[static_cast<size_t>(piece.first + i)], x);
        scale(x, config_.hidden_size, config_.embedding_multiplier);
        float* cos = angles_.as<float>() + row * config_.head_dim;
        rope_.angles(input.cache->tokens() + piece.first + i, cos, cos + config_.head_dim / 2);
      }
    });
  }

  // normed_ = RMSNorm(x)
  void norm(const std::vector<float>& weight) {
    kernels::rms_norm(pool_, x_.as<float>(), rows_, config_.hidden_size, weight.data(),
                      static_cast<float>(config_.rms_norm_eps), type_, normed_.data());
  }

  // normed_ = what attention or MLP takes in
  void norm_input(const std::vector<float>& weight) {
    if (config_.norm_placement == NormPlacement::kInput) return norm(weight);
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

  static void scale(float* x, int64_t n, double factor) {
    if (factor == 1.0) return;
    for (int64_t i = 0; i < n; ++i) x[i] *= static_cast<float>(factor);
  }

  void run_linear(const kernels::PackedMatrix& matrix, const AlignedBuffer& input, const kernels::LinearOutput& output) {
    kernels::linear(pool_, matrix, {input.data(), rows_, matrix.in_features}, output, linear_scratch_);
  }

  // logits = normed_ W^T / logits_divisor; -inf where the head has no row.
  void run_head(float* logits) {
    const std::vector<int32_t>& tokens = weights_.output_tokens;
    if (tokens.empty()) {
      run_linear(weights_.head, normed_, {logits, config_.vocab_size, Epilogue::kStore, nullptr});
    } else {
      run_partial_head(tokens, logits);
    }
    if (config_.logits_divisor == 1.0) return;
    pool_.parallel_for(rows_, [&](int64_t row) {
      scale(logits + row * config_.vocab_size, config_.vocab_size, 1.0 / config_.logits_divisor);
    });
  }

  void run_partial_head(const std::vector<int32_t>& tokens, float* logits) {
    const auto n = static_cast<int64_t>(tokens.size());
    outputs_.grow(static_cast<size_t>(rows_ * n) * sizeof(float));
    run_linear(weights_.head, normed_, {outputs_.as<float>(), n, Epilogue::kStore, nullptr});
    pool_.parallel_for(rows_, [&](int64_t row) {
      float* to = logits + row * config_.vocab_size;
      std::fill_n(to, config_.vocab_size, -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < n; ++i) to[tokens[static_cast<size_t>(i)]] = outputs_.as<float>()[row * n + i];
    });
  }

  // x += input W^T, or what norm and multiplier make of it
  void project_residual(const kernels::PackedMatrix& matrix, const AlignedBuffer& input, const std::vector<float>& b,
                        const std::vector<float>& norm_weight) {
    const bool normed = config_.norm_placement == NormPlacement::kOutput;
    if (!normed && config_.residual_multiplier == 1.0) {
      run_linear(matrix, input, {x_.data(), config_.hidden_size, Epilogue::kAdd, bias(b)});
      return;
    }
    const int64_t n = config_.hidden_size;
    const auto factor = static_cast<float>(config_.residual_multiplier);
    branch_.grow(static_cast<size_t>(rows_ * n) * sizeof(float));
    run_linear(matrix, input, {branch_.data(), n, Epilogue::kStore, bias(b)});
    pool_.parallel_for(rows_, [&](int64_t row) {
      float* y = branch_.as<float>() + row * n;
      float* x = x_.as<float>() + row * n;
      if (normed) kernels::rms_norm(y, n, norm_weight.data(), static_cast<float>(config_.rms_norm_eps), y);
      for (int64_t i = 0; i < n; ++i) x[i] += factor * y[i];
    });
  }

  // What happens to a row's queries and keys, [heads, head_dim] each, between their projection and attention.
  void finish_heads(int64_t layer, const LlamaLayerWeights& w, const float* angles, float* q) const {
    const int64_t dim = config_.head_dim;
    float* k = q + config_.n_heads * dim;
    norm_heads(q, config_.n_heads, w.q_norm);
    norm_heads(k, config_.n_kv_heads, w.k_norm);
    scale(q, config_.n_heads * dim, query_scale_);
    if (config_.has_rope(layer)) kernels::rope(q, config_.n_heads + config_.n_kv_heads, dim, angles, angles + dim / 2);
  }

  void norm_heads(float* x, int64_t n_heads, const std::vector<float>& weight) const {
    const auto n = static_cast<int64_t>(weight.size());
    for (int64_t i = 0; n > 0 && i < n_heads * config_.head_dim; i += n) {
      kernels::rms_norm(x + i, n, weight.data(), static_cast<float>(config_.rms_norm_eps), x + i);
    }
  }

  // Writes K and V of all rows; attended_ = attention. In the last layer, only rows whose logits are wanted go on.
  void attend(std::span<const SequenceInput> batch, int64_t layer, const LlamaLayerWeights& w) {
    const int64_t width = qkv_width(), q_width = config_.n_heads * config_.head_dim;
    const int64_t kv_width = config_.n_kv_heads * config_.head_dim;
    norm_input(w.attention_norm);
    run_linear(w.qkv, normed_, {qkv_.data(), width, Epilogue::kStore, bias(w.qkv_bias)});
    write_failures_.assign(batch.size(), nullptr);
    pool_.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t p) {
      const Piece& piece = pieces_[static_cast<size_t>(p)];
      const auto input = static_cast<size_t>(piece.input);
      if (failed(input)) return;
      for (int64_t row = piece.row; row < piece.row + piece.n; ++row) {
        finish_heads(layer, w, angles_.as<float>() + row * config_.head_dim, qkv_.as<float>() + row * width);
      }
      const float* k = qkv_.as<float>() + piece.row * width + q_width;
      try {
        batch[input].cache->write(layer, {k, k + kv_width, width, piece.first, piece.n});
      } catch (...) {
        const std::lock_guard lock(write_failures_mutex_);
        write_failures_[input] = std::current_exception();
      }
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      if (write_failures_[i] != nullptr) failures_[i] = std::move(write_failures_[i]);
    }

    const bool last = layer + 1 == config_.n_layers;
    tasks_.clear();
    views_.resize(batch.size());
    int64_t row = 0, kept = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      const int64_t n = static_cast<int64_t>(batch[i].tokens.size());
      const int64_t active = last ? batch[i].n_logits : n;
      const int64_t from = row + n - active;
      row += n;
      if (active == 0) continue;
      if (from != kept) {
        std::memmove(x_.as<float>() + kept * config_.hidden_size, x_.as<float>() + from * config_.hidden_size,
                     static_cast<size_t>(active * config_.hidden_size) * sizeof(float));
      }
      views_[i].clear();
      guard(batch, i, [&](SequenceCache& cache) { cache.view(layer, n, &views_[i]); });
      if (!failed(i)) {
        tasks_.push_back({qkv_.as<float>() + from * width, width, active, views_[i],
                          attended_.data() + kept * q_width * element_bytes()});
      }
      kept += active;
    }
    rows_ = kept;
    const kernels::AttentionShape shape{config_.n_heads, config_.n_kv_heads, config_.head_dim,
                                        1.0f / std::sqrt(static_cast<float>(config_.head_dim)), type_};
    kernels::attention(pool_, shape, tasks_, attention_scratch_);
    observe(batch, layer, shape);
  }

  // Shows the caches that want it where their probe queries attend. qkv_ still holds the queries of all rows.
  void observe(std::span<const SequenceInput> batch, int64_t layer, const kernels::AttentionShape& shape) {
    const int64_t width = qkv_width();
    mass_tasks_.clear();
    int64_t row = 0, floats = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      SequenceCache& cache = *batch[i].cache;
      const int64_t n = static_cast<int64_t>(batch[i].tokens.size()), first_row = row;
      row += n;
      if (failed(i)) continue;
      const TokenRange probes = cache.probes(n);
      if (probes.empty()) continue;
      std::vector<kernels::KvSegment>& view = views_[i];
      view.clear();
      guard(batch, i, [&](SequenceCache& of) { of.view(layer, probes.end - of.tokens(), &view); });
      if (failed(i)) continue;
      mass_tasks_.push_back({qkv_.as<float>() + (first_row + probes.first - cache.tokens()) * width, width,
                             probes.end - probes.first, view, nullptr});
      floats += kernels::attention_mass_floats(shape, mass_tasks_.back());
    }
    if (mass_tasks_.empty()) return;
    mass_.grow(static_cast<size_t>(floats) * sizeof(float));
    float* mass = mass_.as<float>();
    for (kernels::AttentionMassTask& task : mass_tasks_) {
      task.mass = mass;
      mass += kernels::attention_mass_floats(shape, task);
    }
    kernels::attention_mass(pool_, shape, mass_tasks_, attention_scratch_);
    size_t t = 0;
    for (size_t input = 0; input < batch.size(); ++input) {
      if (failed(input)) continue;
      const TokenRange probes = batch[input].cache->probes(static_cast<int64_t>(batch[input].tokens.size()));
      if (probes.empty()) continue;
      const kernels::AttentionMassTask& task = mass_tasks_[t++];
      int64_t seen = 1 - task.n;  // by the first probe
      for (const kernels::KvSegment& segment : task.segments) seen += segment.tokens;
      const float* from = task.mass;
      for (int64_t i = 0; i < task.n; ++i, ++seen) {
        const auto size = static_cast<size_t>(config_.n_kv_heads * seen);
        const Probe probe{probes.first + i,
                          {task.q + i * width, static_cast<size_t>(config_.n_heads * config_.head_dim)},
                          {from, size}};
        guard(batch, input, [&](SequenceCache& cache) { cache.observe(layer, probe); });
        from += size;
      }
    }
  }

  ModelConfig config_;
  KvType type_;
  LlamaWeights weights_;
  Rope rope_;
  float query_scale_;  // attention itself divides by sqrt(head_dim)
  ThreadPool& pool_;

  // State of the pass; the buffers grow to the largest pass and stay.
  int64_t rows_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::exception_ptr> failures_;        // of the inputs; null: none so far
  std::vector<std::exception_ptr> write_failures_;  // of the layer's writes, which are made in parallel
  std::mutex write_failures_mutex_;
  AlignedBuffer x_;         // residual stream, f32 [rows, hidden_size]
  AlignedBuffer normed_;    // [rows, hidden_size]
  AlignedBuffer qkv_;       // f32 [rows, qkv_width]
  AlignedBuffer attended_;  // [rows, n_heads head_dim]
  AlignedBuffer gated_;     // [rows, intermediate_size]
  AlignedBuffer branch_;    // f32 [rows, hidden_size]: what attention or MLP adds, before norm and multiplier
  AlignedBuffer outputs_;   // f32 [rows, n_outputs], of a head with rows for some tokens
  AlignedBuffer angles_;    // cos then sin, f32 [rows, 2, head_dim / 2]
  std::vector<std::vector<kernels::KvSegment>> views_;
  std::vector<kernels::AttentionTask> tasks_;
  std::vector<kernels::AttentionMassTask> mass_tasks_;
  AlignedBuffer mass_;      // f32, of all probes
  kernels::AttentionScratch attention_scratch_;
  kernels::LinearScratch linear_scratch_;
};

}  // namespace

std::unique_ptr<Model> load_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress) {
  return std::make_unique<Llama>(weights, options, pool, progress);
}

WeightType llama_weight_type(const LlamaOptions& options) {
  const bool f32 = activation_type(options) == KvType::kF32;
  const std::string& name = options.weights;
  if (name == "auto") return f32 ? WeightType::kF32 : WeightType::kBf16;
  if (name != "bf16" && name != "f32" && name != "int8" && name != "int4") {
    throw ModelError("weights: expected auto, bf16, f32, int8 or int4, found \"" + name + "\"");
  }
  if (f32 != (name == "f32")) throw ModelError("weights: " + name + " does not go with dtype " + options.dtype);
  return name == "f32" ? WeightType::kF32 : name == "bf16" ? WeightType::kBf16 : name == "int8" ? WeightType::kInt8 : WeightType::kInt4;
}

CacheShape llama_cache_shape(const ModelConfig& config, const LlamaOptions& options) {
  return {config.n_layers, config.n_kv_heads, config.head_dim, activation_type(options)};
}

}  // namespace smartkv
