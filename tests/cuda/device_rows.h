// LLaMA backends for tests of serving from a device. They compute native products, on the CPU.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/model/llama.h"
#include "engine/model/native_backend.h"
#include "tests/cuda/device_test.h"

namespace smartkv {

inline BackendLoader native_loader(ThreadPool& pool) {
  return [&pool](const Weights& weights, kernels::KvType type) {
    const auto storage = type == kernels::KvType::kF32 ? kernels::WeightType::kF32 : kernels::WeightType::kBf16;
    return load_native_backend(weights, {storage}, type, pool, nullptr);
  };
}

// Native products. Their rows are copied to and from device memory, where a backend that computes on the device has
// them.
class DeviceRows final : public LlamaBackend {
 public:
  DeviceRows(const ModelConfig& config, std::unique_ptr<LlamaBackend> host)
      : qkv_width_((config.n_heads + 2 * config.n_kv_heads) * config.head_dim),
        q_width_(config.n_heads * config.head_dim),
        vocabulary_(config.vocab_size),
        host_(std::move(host)) {}

  void embed(std::span<const TokenId> tokens) override {
    rows_ = tokens.size();
    host_->embed(tokens);
  }
  bool device_rows() const override { return true; }
  void watch_residual(std::function<void(int64_t layer, float squares)> watch) override {
    host_->watch_residual(std::move(watch));
  }
  void project(int64_t layer, float* qkv) override {
    std::vector<float> rows(rows_ * static_cast<size_t>(qkv_width_));
    host_->project(layer, rows.data());
    ASSERT_EQ(cudaMemcpyAsync(qkv, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
    smartkv::finish();
  }
  void keep_rows(std::span<const RowRange> rows) override {
    rows_ = 0;
    for (const RowRange& range : rows) rows_ += static_cast<size_t>(range.n);
    host_->keep_rows(rows);
  }
  void finish_layer(int64_t layer, const void* attended) override {
    std::vector<uint16_t> rows(rows_ * static_cast<size_t>(q_width_));
    ASSERT_EQ(cudaMemcpyAsync(rows.data(), attended, rows.size() * sizeof(uint16_t), cudaMemcpyDeviceToHost, nullptr),
              cudaSuccess);
    smartkv::finish();
    host_->finish_layer(layer, rows.data());
  }
  void head(float* logits) override {
    std::vector<float> rows(rows_ * static_cast<size_t>(vocabulary_));
    host_->head(rows.data());
    ASSERT_EQ(cudaMemcpyAsync(logits, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
    smartkv::finish();
  }
  int64_t weight_bytes() const override { return host_->weight_bytes(); }
  bool batch_invariant() const override { return host_->batch_invariant(); }

 private:
  int64_t qkv_width_, q_width_, vocabulary_;
  std::unique_ptr<LlamaBackend> host_;
  size_t rows_ = 0;
};

inline BackendLoader device_rows_loader(ThreadPool& pool) {
  return [load = native_loader(pool)](const Weights& weights, kernels::KvType type) {
    return std::make_unique<DeviceRows>(weights.config(), load(weights, type));
  };
}

}  // namespace smartkv
