// Queries and keys between their projection and attention: qk-norm, the query factor and rotary embedding (RoPE).
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace smartkv::kernels {

// Rows of a layer's projection, f32 [rows, (n_heads + 2 n_kv_heads) head_dim]. Queries and keys are changed in place,
// values are not. All pointers point to the same memory: the host's, or one device's.
struct HeadRows {
  float* qkv = nullptr;
  int64_t rows = 0;
  // Weights of qk-norm (RMSNorm). Either each head is normalized by itself, with f32 [head_dim], or all heads together,
  // with f32 [n_heads head_dim] for queries and f32 [n_kv_heads head_dim] for keys. Null if there is no norm.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool norm_heads_together = false;
  float norm_eps = 0;
  float query_factor = 1;  // Multiplies the queries after their norm.
  // [rows, head_dim]: cos, then sin, of each row (rope() in elementwise.h). Null if there is no rotation.
  const float* angles = nullptr;
};

// Applies qk-norm, the query factor and RoPE to rows in host memory, on the calling thread.
void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows);

}  // namespace smartkv::kernels
