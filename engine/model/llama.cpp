#include "engine/model/llama.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <tuple>
#include <vector>

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
KvType activation_type(const LlamaOptions& options) {
  if (options.dtype == "auto") return options.weights == "f32" ? KvType::kF32 : KvType::kBf16;
  if (options.dtype == "bf16" || options.dtype == "f16") return KvType::kBf16;
  if (options.dtype == "f32") return KvType::kF32;
  throw ModelError("dtype: expected auto, bf16, f16 or f32, found \"" + options.dtype + "\"");
}

void scale_rope(const std::string& scaling, double factor, int64_t own_context, RopeConfig* rope) {
  if (scaling == "linear") {
    rope->scaling = RopeScaling::kLinear;
  } else if (scaling == "dynamic") {
    rope->scaling = RopeScaling::kDynamic;
  } else if (scaling == "yarn") {
    rope->scaling = RopeScaling::kYarn;
  } else {
    throw ModelError("rope_scaling: expected none, linear, dynamic or yarn, found \"" + scaling + "\"");
  }
  rope->factor = factor;
  rope->original_context = own_context;
  rope->magnitude = scaling == "yarn" ? 0.1 * std::log(rope->factor) + 1 : 1;
}

ModelConfig served_config(ModelConfig config, const LlamaOptions& options) {
  const double ratio = static_cast<double>(options.context_length) / static_cast<double>(config.context_length);
  const double factor = options.rope_factor > 0 ? options.rope_factor : ratio;
  if (options.rope_scaling != "none" && factor > 1) scale_rope(options.rope_scaling, factor, config.context_length, &config.rope);
  if (options.context_length > 0) config.context_length = options.context_length;
  if (config.context_length <= config.sliding_window) config.sliding_window = 0;  // The window hides nothing.
  return config;
}

class Llama final : public Model {
 public:
  Llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool, const BackendLoader& load,
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
  void rope_angles(int64_t position, float* cos, float* sin) const override { attention_.rope().angles(position, cos, sin); }
  int64_t weight_bytes() const override { return backend_->weight_bytes() + attention_.weight_bytes(); }
  bool batch_invariant() const override {
    return backend_->batch_invariant() && attention_.backend()->batch_invariant();
  }
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
      attention_.attend(layer, qkv, attended_.data());
      backend_->advance(layer, attended_.data(), qkv);
    }
    backend_->keep_rows(attention_.wanted());
    attention_.attend(last, qkv, attended_.data());
    if (attention_.wanted_rows() > 0) finish(batch, logits);
    attention_.end();
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
        device.download(reinterpret_cast<const std::byte*>(wanted), static_cast<size_t>(row - wanted) * sizeof(float), logits);
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

std::unique_ptr<Model> load_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const std::function<void(double)>& progress, std::shared_ptr<kernels::KvBackend> kv_backend) {
  const LlamaStorage storage = llama_storage(options, weights);  // checks the options
  if (kv_backend == nullptr) kv_backend = device_kv_backend(options.device, pool);
  const GraphLog log_line = [](LogLevel level, const std::string& line) { log(level, line); };
  const auto load = [&](const Weights& served, KvType type) {
    if (options.backend == "torch") {
      return load_torch_backend(torch_backend_path(), served, product_type(options), options.device, pool.size(), progress, nullptr,
                                options.device == "cpu" || options.cuda_graphs == "off" ? GraphLog() : log_line);
    }
    return load_native_backend(served, storage, type, pool, progress);
  };
  return make_llama(weights, options, pool, load, std::move(kv_backend));
}

std::unique_ptr<Model> make_llama(const Weights& weights, const LlamaOptions& options, ThreadPool& pool,
                                  const BackendLoader& load, std::shared_ptr<kernels::KvBackend> kv_backend) {
  const std::unique_ptr<Weights> padded = pad_weights(weights);
  return std::make_unique<Llama>(padded != nullptr ? *padded : weights, options, pool, load, std::move(kv_backend));
}

std::vector<std::string> llama_option_errors(const LlamaOptions& options) {
  std::vector<std::string> errors;
  const auto expect = [&](bool held, const std::string& otherwise) {
    if (!held) errors.push_back(otherwise);
  };
  const auto is_one_of = [](const std::string& found, std::initializer_list<const char*> values) {
    return std::find(values.begin(), values.end(), found) != values.end();
  };
  const auto& [dtype, weights, backend, device, graphs] =
      std::tie(options.dtype, options.weights, options.backend, options.device, options.cuda_graphs);
  const bool dtype_known = is_one_of(dtype, {"auto", "bf16", "f16", "f32"});
  const bool weights_known = is_one_of(weights, {"auto", "file", "bf16", "f32", "int8", "int4"});
  expect(dtype_known, "dtype: expected auto, bf16, f16 or f32, found \"" + dtype + '"');
  expect(weights_known, "weights: expected auto, file, bf16, f32, int8 or int4, found \"" + weights + '"');
  expect(is_one_of(backend, {"native", "torch"}), "backend: expected native or torch, found \"" + backend + '"');
  try {
    check_device(device);
    expect(backend != "native" || device == "cpu",
           "device: expected cpu, because backend native runs on the CPU, found \"" + device +
               "\"; --backend torch supports GPUs");
  } catch (const ModelError& error) {
    errors.emplace_back(error.what());
  }
  expect(is_one_of(graphs, {"auto", "on", "off"}), "cuda_graphs: expected auto, on or off, found \"" + graphs + '"');
  expect(graphs != "on" || device != "cpu",
         "cuda_graphs: expected auto or off on device cpu, found \"on\"; CUDA graphs need a GPU (--device cuda:0)");
  expect(backend != "native" || dtype != "f16",
         "dtype: expected auto, bf16 or f32 with backend native, found \"f16\"; --backend torch supports it");
  if (!dtype_known || !weights_known || weights == "auto") return errors;
  const bool f32 = activation_type(options) == KvType::kF32;
  if (dtype == "f16") {
    expect(false, "weights: expected auto, which stores f16, with dtype f16, found \"" + weights + '"');
  } else if (backend == "torch" && is_one_of(weights, {"int8", "int4", "file"})) {
    expect(false, "weights: expected auto, bf16 or f32 with backend torch, found \"" + weights + '"');
  } else {
    expect(f32 == (weights == "f32"), "weights: expected " + std::string(f32 ? "auto or f32" : "auto, file, bf16, int8 or int4") +
                                          " with dtype " + dtype + ", found \"" + weights + '"');
  }
  return errors;
}

void check_llama_options(const LlamaOptions& options) {
  if (const std::vector<std::string> errors = llama_option_errors(options); !errors.empty()) throw ModelError(errors.front());
}

ProductType product_type(const LlamaOptions& options) {
  if (activation_type(options) == KvType::kF32) return ProductType::kF32;
  return options.dtype == "f16" ? ProductType::kF16 : ProductType::kBf16;
}

std::string stored_weights(const LlamaOptions& options, const Weights& weights) {
  if (options.weights != "auto") return options.weights;
  if (options.backend == "torch" || activation_type(options) == KvType::kF32) return std::string(name(product_type(options)));
  if (!weights.stored_as().empty()) return weights.stored_as();
  const std::vector<std::string> names = weights.names();
  const bool quantized = std::any_of(names.begin(), names.end(), [&](const std::string& name) { return !is_float(*weights.find(name)); });
  return quantized ? "file" : "bf16";
}

LlamaStorage llama_storage(const LlamaOptions& options, const Weights& weights) {
  check_llama_options(options);
  const std::string name = stored_weights(options, weights);
  if (name == "f32") return {WeightType::kF32};
  if (name == "int8") return {WeightType::kInt8};
  if (name == "int4") return {WeightType::kInt4};
  if (name == "file") return {options.int4_floats ? WeightType::kInt4 : WeightType::kBf16, true};
  return {WeightType::kBf16};
}

CacheShape llama_cache_shape(const ModelConfig& config, const LlamaOptions& options) {
  return {config.n_layers, config.n_kv_heads, padded_config(config).head_dim, activation_type(options)};
}

}  // namespace smartkv
