#include <cmath>
#include <numeric>

#include "cache/policies/gated_eviction/hidden_gate.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

// x = RMSNorm(x)
void normalize(const std::vector<float>& weight, float* x) {
  constexpr float kEpsilon = 1e-6f;
  const size_t n = weight.size();
  const float squares = std::inner_product(x, x + n, x, 0.0f);
  const float factor = 1 / std::sqrt(squares / static_cast<float>(n) + kEpsilon);
  for (size_t i = 0; i < n; ++i) x[i] *= factor * weight[i];
}

class FastKvzipGate final : public HiddenGate {
 public:
  FastKvzipGate(const FastKvzipShape& shape, const std::vector<FastKvzipLayer>& layers)
      : HiddenGate(shape.hidden_size, shape.n_kv_heads),
        shape_(shape),
        q_width_(shape.n_kv_heads * shape.n_queries * shape.dim),
        width_(q_width_ + shape.n_kv_heads * shape.dim) {
    for (const FastKvzipLayer& layer : layers) {
      std::vector<float> weight = layer.q, bias = layer.q_bias;
      weight.insert(weight.end(), layer.k.begin(), layer.k.end());
      bias.resize(static_cast<size_t>(width_));
      layers_.push_back({{pack_map(weight, width_, shape.hidden_size), std::move(bias)},
                         layer.q_norm,
                         layer.k_norm,
                         layer.bases,
                         layer.logit_bias});
    }
  }

  std::string description() const override {
    return "Fast KVzip, " + std::to_string(shape_.n_queries) + " queries and " + std::to_string(shape_.n_bases) +
           " learned keys of width " + std::to_string(shape_.dim);
  }
  int64_t n_layers() const override { return static_cast<int64_t>(layers_.size()); }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const Layer& layer : layers_) {
      const size_t floats = layer.projection.bias.size() + layer.q_norm.size() + layer.k_norm.size() +
                            layer.bases.size() + layer.logit_bias.size();
      bytes += layer.projection.weight.bytes() + static_cast<int64_t>(floats * sizeof(float));
    }
    return bytes;
  }

  void score(ThreadPool& threads, int64_t layer, const uint16_t* x, int64_t n, float* scores) const override {
    const Layer& of = layers_[static_cast<size_t>(layer)];
    std::vector<float> projected(static_cast<size_t>(n * width_));
    kernels::LinearScratch scratch;
    kernels::linear(threads, of.projection.weight, {x, n, hidden_size()},
                    {.out = projected.data(), .stride = width_, .bias = of.projection.bias.data()}, scratch);
    threads.parallel_for(n, [&](int64_t token) {
      float* const row = projected.data() + token * width_;
      for (int64_t at = 0; at < width_; at += shape_.dim) normalize(at < q_width_ ? of.q_norm : of.k_norm, row + at);
      for (int64_t head = 0; head < n_kv_heads(); ++head) scores[token * n_kv_heads() + head] = score_of(of, row, head);
    });
  }

 private:
  struct Layer {
    GateMaps::Map projection;  // the queries of all KV heads, then their keys
    std::vector<float> q_norm, k_norm, bases, logit_bias;
  };

  // row: normalized queries and keys of a token.
  float score_of(const Layer& layer, const float* row, int64_t head) const {
    const int64_t dim = shape_.dim;
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    const float* const key = row + q_width_ + head * dim;
    float sum = 0;
    for (int64_t q = head * shape_.n_queries; q < (head + 1) * shape_.n_queries; ++q) {
      const float* const query = row + q * dim;
      const float own =
          std::inner_product(key, key + dim, query, 0.0f) * scale + layer.logit_bias[static_cast<size_t>(q)];
      const float* base = layer.bases.data() + head * shape_.n_bases * dim;
      float others = 0;
      for (int64_t i = 0; i < shape_.n_bases; ++i, base += dim) {
        others += std::exp(std::inner_product(base, base + dim, query, 0.0f) * scale - own);
      }
      sum += 1 / (1 + others);
    }
    return sum / static_cast<float>(shape_.n_queries);
  }

  FastKvzipShape shape_;
  int64_t q_width_, width_;
  std::vector<Layer> layers_;
};

}  // namespace

std::shared_ptr<const HiddenGate> make_fast_kvzip_gate(const FastKvzipShape& shape,
                                                       const std::vector<FastKvzipLayer>& layers) {
  return std::make_shared<FastKvzipGate>(shape, layers);
}

}  // namespace smartkv
