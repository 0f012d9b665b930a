// Gates estimate what tokens are worth, and are read from files: those of `smartkv train-gate` (LifespanGate), those of
// hidden states (hidden_gate.h) and those of whole KV heads (head_gate.h).
//
// A layer of a LifespanGate has one or two heads:
//  - The first head is an MLP from a key before RoPE to how long the token stays useful: log4 of its expected lifespan.
//    Its layers are head_dim -> 256 -> 256 -> 256 -> 1, with ReLU between them. The KV heads of a layer share the MLP.
//  - The second head, which a file may lack, is a linear map from the keys before RoPE and the values of all KV heads
//    to the token's importance: how much the token matters to a later question. That is the logarithm of the strongest
//    attention that a repetition of the text pays to it (lab/training/importance.h).
//
// `smartkv train-gate` trains gates; engine/gates reads and writes their files.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/gated_eviction/gate_maps.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {

class ThreadPool;

// A gate of a model. Immutable, so that all sequences of a policy share one.
class Gate {
 public:
  virtual ~Gate() = default;
  virtual std::string description() const = 0;  // for the log: where it is from, and its kind
  virtual int64_t n_layers() const = 0;         // layers with full attention
  virtual int64_t bytes() const = 0;            // held in memory
  // Whether its scorer is a HiddenScorer.
  virtual bool scores_hidden() const { return false; }
  // Returns a scorer that may outlive the gate.
  virtual TokenScorer scorer(const PolicyContext& context) const = 0;
};

// The heads of one layer in f32. The MLP's maps are in order of application.
struct GateLayer {
  static constexpr int64_t kDepth = GateMaps::kDepth;
  static constexpr int64_t kHidden = GateMaps::kHidden;
  // Returns the shape of the MLP's linear map `i`: [out_features, in_features].
  static std::array<int64_t, 2> shape(int64_t i, int64_t head_dim) {
    return {i == kDepth - 1 ? 1 : kHidden, i == 0 ? head_dim : kHidden};
  }

  std::array<std::vector<float>, kDepth> weight;
  std::array<std::vector<float>, kDepth> bias;  // [out_features]

  // Number of inputs of the second head: K before RoPE, then V, f32 [2, n_kv_heads, head_dim].
  static constexpr int64_t importance_features(int64_t n_kv_heads, int64_t head_dim) {
    return 2 * n_kv_heads * head_dim;
  }
  // The second head: [n_kv_heads, importance_features + 1], the constant last. Empty if there is none.
  std::vector<float> importance;
};

// Returns the position at which a token has outlived its use; a cache evicts the earliest first. If lifespans are
// distributed exponentially with mean m, a token of some age is expected to be useful for another m exp(-age / m)
// tokens. That falls to kSpent at age m ln(m / kSpent).
inline float expiry(int64_t position, float log4_lifespan) {
  constexpr float kSpent = 16;
  const float mean = std::exp2(2.0f * log4_lifespan);
  return static_cast<float>(position) + mean * std::log(mean / kSpent);
}

// Predicts lifespans. Weights are held in bf16.
class LifespanGate final : public Gate {
 public:
  // n_kv_heads: KV heads that the second heads cover. Throws CacheError naming the layer and the map if a size is not
  // GateLayer's.
  LifespanGate(int64_t n_kv_heads, int64_t head_dim, const std::vector<GateLayer>& layers);

  // Calls gate_scores() with `threads`, or with the calling thread alone if that is null.
  void score(ThreadPool* threads, int64_t layer, const float* keys, int64_t n, float* scores) const;

  bool has_importance() const { return !maps_->importance.empty(); }
  // Returns the maps for a process with KV heads [first, first + heads). The importance is the sum of the second heads
  // over all such parts; the part with first == 0 has the constant.
  std::shared_ptr<const GateMaps> maps(int64_t first, int64_t heads) const;
  std::string description() const override { return "lifespans, of smartkv train-gate"; }
  int64_t n_layers() const override { return static_cast<int64_t>(maps_->layers.size()); }
  int64_t head_dim() const { return maps_->head_dim; }
  int64_t bytes() const override;
  // Scores a token by the position at which it expires.
  TokenScorer scorer(const PolicyContext& context) const override;

 private:
  std::shared_ptr<const GateMaps> maps_;
};

}  // namespace smartkv
