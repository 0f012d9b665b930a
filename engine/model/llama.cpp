#include "engine/model/llama.h"

#include <cmath>

#include "engine/log.h"
#include "engine/model/cache_attention.h"
#include "engine/model/device.h"
#include "engine/model/llama_weights.h"
#include "engine/model/native_backend.h"
#include "engine/model/torch_backend.h"
#include "engine/weights/padded_weights.h"
#include "engine/weights/quantized_rows.h"

namespace smartkv {
namespace {

using kernels::KvType;
using kernels::WeightType;

// Returns the type of the caches and of the results of attention.
KvType activation_type(const ModelOptions& options) {
  return product_type(options) == ProductType::kF32 ? KvType::kF32 : KvType::kBf16;
}

// Returns the storage of the matrices, never auto.
WeightFormat weight_format(const ModelOptions& options, const Weights& weights) {
  if (options.weights != WeightFormat::kAuto) return options.weights;
  if (activation_type(options) == KvType::kF32) return WeightFormat::kF32;
  if (options.backend == Backend::kTorch) return WeightFormat::kBf16;
  if (const std::string stored = weights.stored_as(); !stored.empty()) return from_name<WeightFormat>(stored).value();
  const auto quantized = [&](const std::string& tensor) { return !is_float(*weights.find(tensor)); };
  const std::vector<std::string> names = weights.names();
  return std::any_of(names.begin(), names.end(), quantized) ? WeightFormat::kFile : WeightFormat::kBf16;
}

ModelConfig served_config(ModelConfig config, const ModelOptions& options) {
  const auto& [scaling, given] = options.rope_scaling;
  const double ratio = static_cast<double>(options.context_length) / static_cast<double>(config.context_length);
  const double factor = given > 0 ? given : ratio;
  if (scaling != RopeScaling::kNone && factor > 1) {
    config.rope.scaling = scaling;
    config.rope.factor = factor;
    config.rope.original_context = config.context_length;
    config.rope.magnitude = scaling == RopeScaling::kYarn ? 0.1 * std::log(factor) + 1 : 1;
  }
  if (options.context_length > 0) config.context_length = options.context_length;
  // The window hides nothing. If some layers have full attention, a cache divides the layers all the same, so that what
  // was measured of a model is for every context length.
  if (config.context_length <= config.sliding_window && config.window_layers.empty()) config.sliding_window = 0;
  return config;
}

class Llama final : public Model {
 public:
  Llama(const Weights& weights, const ModelOptions& options, ThreadPool& pool, const BackendLoader& load,
        std::shared_ptr<kernels::KvBackend> kv_backend)
      : config_(served_config(weights.config(), options)),
        element_bytes_(activation_type(options) == KvType::kBf16 ? 2 : 4),
        attention_(weights, config_, activation_type(options), pool, std::move(kv_backend)),
        backend_(load(weights, activation_type(options))) {
    if (!backend_->device_rows()) return;
    attention_.use_device_rows();
    qkv_.move_to(attention_.backend());
    attended_.move_to(attention_.backend());
    logits_.move_to(attention_.backend());
  }

  const ModelConfig& config() const override { return config_; }
  void rope_angles(int64_t position, float* cos, float* sin) const override {
    attention_.rope().angles(position, cos, sin);
  }
  const float* attention_sinks(int64_t layer) const override { return attention_.sinks(layer); }
  int64_t weight_bytes() const override { return backend_->weight_bytes() + attention_.weight_bytes(); }
  bool batch_invariant() const override {
    return backend_->batch_invariant() && attention_.backend()->batch_invariant();
  }
  bool shows_hidden() const override { return backend_->shows_input(); }
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return attention_.backend(); }

  void forward(std::span<const SequenceInput> batch, float* logits) override {
    attention_.begin(batch);
    tokens_.clear();
    for (const SequenceInput& input : batch) tokens_.insert(tokens_.end(), input.tokens.begin(), input.tokens.end());
    const int64_t rows = std::max(attention_.rows(), backend_->least_rows()), last = config_.n_layers - 1;
    qkv_.grow(static_cast<size_t>(rows * attention_.qkv_width()) * sizeof(float));
    attended_.grow(static_cast<size_t>(rows * attention_.q_width() * element_bytes_));
    auto* const qkv = qkv_.as<float>();
    backend_->start(tokens_, qkv);
    for (int64_t layer = 0; layer < last; ++layer) {
      attention_.show_hidden(layer, *backend_);
      attention_.attend(layer, qkv, attended_.data());
      backend_->advance(layer, attended_.data(), qkv);
    }
    attention_.show_hidden(last, *backend_);
    backend_->keep_rows(attention_.wanted());
    attention_.attend(last, qkv, attended_.data());
    if (attention_.wanted_rows() > 0) finish(batch, logits);
    attention_.end();
  }
  void watch_residual(std::function<void(int64_t layer, float squares)> watch) override {
    backend_->watch_residual(std::move(watch));
  }
  bool samples_tokens() const override {
    return backend_->device_rows() && attention_.backend()->device_sampler() != nullptr &&
           config_.vocab_size <= kernels::DeviceSampler::kMostTokens;
  }

 private:
  // Computes the logits of the wanted rows and copies them to the host. Rows from which the device sampler draws a
  // token stay on the device.
  void finish(std::span<const SequenceInput> batch, float* logits) {
    const int64_t last = config_.n_layers - 1;
    if (!backend_->device_rows()) return backend_->finish(last, attended_.data(), logits);
    kernels::KvBackend& device = *attention_.backend();
    const int64_t rows = std::max(attention_.wanted_rows(), backend_->least_rows());
    logits_.grow(static_cast<size_t>(rows * config_.vocab_size) * sizeof(float));
    auto* row = logits_.as<float>();
    backend_->finish(last, attended_.data(), row);
    draws_.clear();
    const float* wanted = row;  // The host wants the rows from here up to `row`.
    const auto fetch = [&] {
      if (logits != nullptr && wanted != row) {
        device.download(reinterpret_cast<const std::byte*>(wanted), static_cast<size_t>(row - wanted) * sizeof(float),
                        logits);
        logits += row - wanted;
      }
    };
    for (const SequenceInput& input : batch) {
      if (input.draw != nullptr) {
        fetch();
        input.draw->logits = row;
        draws_.push_back(input.draw);
      }
      row += input.n_logits * config_.vocab_size;
      if (input.draw != nullptr) wanted = row;
    }
    fetch();
    if (!draws_.empty()) device.device_sampler()->draw(draws_);
  }

  ModelConfig config_;
  int64_t element_bytes_;  // Bytes of one activation.
  CacheAttention attention_;
  std::unique_ptr<LlamaBackend> backend_;

  // State of the current pass. Buffers grow to the size of the largest pass and are never shrunk.
  std::vector<TokenId> tokens_;
  kernels::RowMemory qkv_;       // f32 [rows, qkv_width]
  kernels::RowMemory attended_;  // [rows, n_heads head_dim]
  kernels::RowMemory logits_;    // f32 [wanted rows, vocab_size]; used if the rows of the backend are on a device
  std::vector<kernels::DeviceSample*> draws_;
};

}  // namespace

std::unique_ptr<Model> load_llama(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress,
                                  std::shared_ptr<kernels::KvBackend> kv_backend) {
  const LlamaStorage storage = llama_storage(options, weights);  // checks the options
  if (kv_backend == nullptr) kv_backend = device_kv_backend(options.device, pool);
  const bool experts = weights.config().n_experts > 0;  // Which ones compute is decided on the host.
  if (experts && options.cuda_graphs == CudaGraphs::kOn) {
    throw ModelError("cuda_graphs: expected auto or off for a model with experts, found \"on\"");
  }
  const bool graphs = options.on_gpu() && options.cuda_graphs != CudaGraphs::kOff && !experts;
  const GraphLog log_line = [](LogLevel level, const std::string& line) { log(level, line); };
  const auto load = [&](const Weights& served, KvType type) {
    if (options.backend == Backend::kTorch) {
      return load_torch_backend(torch_backend_path(), served, product_type(options), options.device, pool.size(),
                                progress, nullptr, graphs ? log_line : GraphLog());
    }
    return load_native_backend(served, storage, type, pool, progress, options.weights_lock == WeightsLock::kOn);
  };
  return make_llama(weights, options, pool, load, std::move(kv_backend));
}

std::unique_ptr<Model> make_llama(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                  const BackendLoader& load, std::shared_ptr<kernels::KvBackend> kv_backend) {
  const std::unique_ptr<Weights> padded = pad_weights(weights);
  return std::make_unique<Llama>(padded != nullptr ? *padded : weights, options, pool, load, std::move(kv_backend));
}

std::string stored_weights(const ModelOptions& options, const Weights& weights) {
  return options.dtype == DataType::kF16 ? "f16" : std::string(name(weight_format(options, weights)));
}

LlamaStorage llama_storage(const ModelOptions& options, const Weights& weights) {
  check_model_options(options);
  const WeightFormat format = weight_format(options, weights);
  if (format == WeightFormat::kF32) return {WeightType::kF32};
  if (format == WeightFormat::kInt8) return {WeightType::kInt8};
  if (format == WeightFormat::kInt4) return {WeightType::kInt4};
  if (format == WeightFormat::kFile) return {options.int4_floats ? WeightType::kInt4 : WeightType::kBf16, true};
  return {WeightType::kBf16};
}

CacheShape llama_cache_shape(const ModelConfig& config, const ModelOptions& options) {
  return {served_config(config, options).n_full_layers(), config.n_kv_heads, padded_config(config).head_dim,
          activation_type(options)};
}

}  // namespace smartkv
