#include "kernels/head_rows.h"

#include "kernels/elementwise.h"

namespace smartkv::kernels {
namespace {

// Applies RMSNorm in place to each run of n of the `all` values. weight: f32 [n], or null if there is no norm.
void norm_heads(float* x, int64_t all, int64_t n, const float* weight, float eps) {
  if (weight == nullptr) return;
  for (int64_t i = 0; i < all; i += n) rms_norm(x + i, n, weight, eps, x + i);
}

}  // namespace

void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows) {
  const int64_t dim = shape.head_dim, q = shape.n_heads * dim, k = shape.n_kv_heads * dim;
  for (int64_t row = 0; row < rows.rows; ++row) {
    float* const x = rows.qkv + row * (q + 2 * k);
    norm_heads(x, q, rows.norm_heads_together ? q : dim, rows.q_norm, rows.norm_eps);
    norm_heads(x + q, k, rows.norm_heads_together ? k : dim, rows.k_norm, rows.norm_eps);
    if (rows.query_factor != 1.0f) {
      for (int64_t i = 0; i < q; ++i) x[i] *= rows.query_factor;
    }
    if (rows.angles == nullptr) continue;
    const float* const angles = rows.angles + row * dim;
    rope(x, shape.n_heads + shape.n_kv_heads, dim, angles, angles + dim / 2);
  }
}

}  // namespace smartkv::kernels
