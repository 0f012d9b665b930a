// Predicts how much a token matters to later ones from its key and value alone.
#pragma once

#include <cstdint>
#include <vector>

namespace smartkv {

// The linear map of one KV head. Its features are the key before RoPE, the value, the energy of each pair of the key's
// elements that RoPE rotates together, and the logarithm of the value's squared norm. Its result is the logarithm of
// what the token will do to the residual stream: the mean over later queries, summed over the head's query heads, of
// p^2 |W_O v|^2, relative to the squared norm of the stream.
struct ImportanceMap {
  std::vector<float> weights;  // [n_features(head_dim)]; the constant is the last one

  static constexpr int64_t n_features(int64_t head_dim) { return 2 * head_dim + head_dim / 2 + 2; }
  // Writes the features of a token, the last of which is 1: f32 [n_features(head_dim)]. k: before RoPE; k, v: f32
  // [head_dim].
  static void features(const float* k, const float* v, int64_t head_dim, float* out);
  // Never NaN.
  float importance(const float* k, const float* v, int64_t head_dim) const;
};

}  // namespace smartkv
