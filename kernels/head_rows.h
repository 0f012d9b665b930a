// Queries and keys between their projection and attention: norms of heads, the queries' factor, RoPE.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace smartkv::kernels {

// Rows of a layer's projection, f32 [rows, (n_heads + 2 n_kv_heads) head_dim], changed in place; values stay as they are. All
// that it points to is in one memory: the host's, or a device's.
struct HeadRows {
  float* qkv = nullptr;
  int64_t rows = 0;
  // RMSNorm of each head, f32 [head_dim], or of all heads together, f32 [n_heads head_dim] and [n_kv_heads head_dim]; null: none.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool norm_heads_together = false;
  float norm_eps = 0;
  float query_factor = 1;
  const float* angles = nullptr;  // [rows, head_dim]: each row's cos, then sin (rope() in elementwise.h); null: no rotation
};

// In the host's memory, by the calling thread.
void finish_heads(const AttentionShape& shape, const HeadRows& rows);

}  // namespace smartkv::kernels
