// The learned gates. Their first head: per layer an MLP from a key before RoPE to how long the token stays useful, log4 of
// its expected lifespan. Their second, which a file may lack: per layer a linear map from the keys before RoPE and the values
// of all KV heads to how much the token matters to somebody who asks about it later, the logarithm of the strongest look that
// a repetition of the text takes at it (engine/torch/importance.h).
//
// The MLP: head_dim -> 256 -> 256 -> 256 -> 1 with ReLU between. A layer's KV heads share its MLP. Trained by
// `smartkv train-gate`; engine/gates reads and writes the files.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/gate_maps.h"

namespace smartkv {

class ThreadPool;

// One layer's heads in f32; the MLP in the order of application.
struct GateLayer {
  static constexpr int64_t kDepth = kernels::GateMaps::kDepth;
  static constexpr int64_t kHidden = kernels::GateMaps::kHidden;
  // Of linear map `i`: [out_features, in_features].
  static std::array<int64_t, 2> shape(int64_t i, int64_t head_dim) {
    return {i == kDepth - 1 ? 1 : kHidden, i == 0 ? head_dim : kHidden};
  }

  std::array<std::vector<float>, kDepth> weight;
  std::array<std::vector<float>, kDepth> bias;  // [out_features]

  // What the second head sees of a token: K before RoPE, then V, f32 [2, n_kv_heads, head_dim].
  static constexpr int64_t importance_features(int64_t n_kv_heads, int64_t head_dim) { return 2 * n_kv_heads * head_dim; }
  std::vector<float> importance;  // [n_kv_heads, importance_features + 1], a constant last; empty: there is none
};

// The position at which a token has outlived its use: a cache evicts the earliest first. If lifespans of mean m are
// distributed exponentially, a token of some age is expected to be of use to another m exp(-age / m) tokens; that falls
// to kSpent at age m ln(m / kSpent).
inline float expiry(int64_t position, float log4_lifespan) {
  constexpr float kSpent = 16;
  const float mean = std::exp2(2.0f * log4_lifespan);
  return static_cast<float>(position) + mean * std::log(mean / kSpent);
}

// Immutable, so that the sequences of a policy share one. Weights are held in bf16.
class Gate {
 public:
  // n_kv_heads: of the second heads. Throws CacheError naming the layer and map whose size is not GateLayer's.
  Gate(int64_t n_kv_heads, int64_t head_dim, const std::vector<GateLayer>& layers);

  // kernels::gate_scores(), by these threads; null: the calling one alone.
  void score(ThreadPool* threads, int64_t layer, const float* keys, int64_t n, float* scores) const;

  bool has_importance() const { return !maps_->importance.empty(); }
  // As they read the keys and values of KV heads [first, first + heads): the second heads' sums over all parts,
  // of which the first has the constant, are the importance.
  std::shared_ptr<const kernels::GateMaps> maps(int64_t first, int64_t heads) const;
  int64_t n_layers() const { return static_cast<int64_t>(maps_->layers.size()); }
  int64_t head_dim() const { return maps_->head_dim; }
  int64_t bytes() const;  // held in memory

 private:
  std::shared_ptr<const kernels::GateMaps> maps_;
};

}  // namespace smartkv
