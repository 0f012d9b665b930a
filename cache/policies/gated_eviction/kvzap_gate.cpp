#include <cmath>
#include <numbers>

#include "cache/policies/gated_eviction/hidden_gate.h"
#include "kernels/bf16.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

class KvzapGate final : public HiddenGate {
 public:
  KvzapGate(int64_t hidden_size, int64_t n_kv_heads, int64_t inner, const std::vector<KvzapLayer>& layers)
      : HiddenGate(hidden_size, n_kv_heads), inner_(inner) {
    for (const KvzapLayer& layer : layers) {
      std::vector<GateMaps::Map>& maps = layers_.emplace_back();
      int64_t in = hidden_size;
      for (const KvzapLayer::Map& map : layer.maps) {
        const auto out = static_cast<int64_t>(map.bias.size());
        maps.push_back({pack_map(map.weight, out, in), map.bias});
        in = out;
      }
    }
  }

  std::string description() const override {
    return inner_ == 0 ? "KVzap, linear" : "KVzap, an MLP of width " + std::to_string(inner_);
  }
  int64_t n_layers() const override { return static_cast<int64_t>(layers_.size()); }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& maps : layers_) {
      for (const GateMaps::Map& map : maps)
        bytes += map.weight.bytes() + static_cast<int64_t>(map.bias.size() * sizeof(float));
    }
    return bytes;
  }

  void score(ThreadPool& threads, int64_t layer, const uint16_t* x, int64_t n, float* scores) const override {
    const std::vector<GateMaps::Map>& maps = layers_[static_cast<size_t>(layer)];
    kernels::LinearScratch scratch;
    std::vector<uint16_t> activated;
    if (inner_ > 0) {
      std::vector<float> y(static_cast<size_t>(n * inner_));
      kernels::linear(threads, maps[0].weight, {x, n, hidden_size()},
                      {.out = y.data(), .stride = inner_, .bias = maps[0].bias.data()}, scratch);
      activated.resize(y.size());
      threads.parallel_for(n, [&](int64_t row) {
        for (int64_t i = row * inner_; i < (row + 1) * inner_; ++i) {
          const float z = y[static_cast<size_t>(i)];
          activated[static_cast<size_t>(i)] = to_bf16(0.5f * z * (1 + std::erf(z / std::numbers::sqrt2_v<float>)));
        }
      });
      x = activated.data();
    }
    const GateMaps::Map& last = maps.back();
    kernels::linear(threads, last.weight, {x, n, last.weight.in_features},
                    {.out = scores, .stride = n_kv_heads(), .bias = last.bias.data()}, scratch);
  }

 private:
  int64_t inner_;
  std::vector<std::vector<GateMaps::Map>> layers_;
};

}  // namespace

std::shared_ptr<const HiddenGate> make_kvzap_gate(int64_t hidden_size, int64_t n_kv_heads, int64_t inner,
                                                  const std::vector<KvzapLayer>& layers) {
  return std::make_shared<KvzapGate>(hidden_size, n_kv_heads, inner, layers);
}

}  // namespace smartkv
