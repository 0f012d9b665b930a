#include "kernels/cuda/head_rows.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

// Returns 1 / sqrt(mean(x^2) + eps), given the sum of squares.
__device__ __forceinline__ float norm_factor(float squares, int n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

// Returns the sum of squares of n floats to all threads of the block. parts: kWarps floats of shared memory.
__device__ float block_squares(const float* x, int n, float* parts) {
  float squares = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) squares = fmaf(x[i], x[i], squares);
  squares = sum_of_warp(squares);
  __syncthreads();  // Other threads may still read `parts`.
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += parts[w];
  return sum;
}

// A block takes a row, a warp a head. A lane has elements j and j + head_dim / 2, which RoPE rotates together.
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_kernel(HeadRows job, int n_heads, int n_kv_heads, int head_dim) {
  auto* const parts = reinterpret_cast<float*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), half = head_dim / 2;
  const int64_t row = blockIdx.x;
  float* const x = job.qkv + row * (n_heads + 2 * n_kv_heads) * head_dim;
  const float* const cos = job.angles == nullptr ? nullptr : job.angles + row * head_dim;
  float q_factor = 1.0f, k_factor = 1.0f;
  if (job.norm_heads_together) {
    const int q = n_heads * head_dim, k = n_kv_heads * head_dim;
    q_factor = norm_factor(block_squares(x, q, parts), q, job.norm_eps);
    k_factor = norm_factor(block_squares(x + q, k, parts), k, job.norm_eps);
  }
  for (int head = warp; head < n_heads + n_kv_heads; head += kWarps) {
    const bool query = head < n_heads;
    float* const of_head = x + static_cast<int64_t>(head) * head_dim;
    const float* weight = query ? job.q_norm : job.k_norm;
    float factor = query ? q_factor : k_factor;
    if (weight != nullptr && job.norm_heads_together) weight += (query ? head : head - n_heads) * head_dim;
    if (weight != nullptr && !job.norm_heads_together) {
      float squares = 0.0f;
      for (int d = lane; d < head_dim; d += 32) squares = fmaf(of_head[d], of_head[d], squares);
      factor = norm_factor(sum_of_warp(squares), head_dim, job.norm_eps);
    }
    const float scale = query ? job.query_factor : 1.0f;
    for (int j = lane; j < half; j += 32) {
      float a = of_head[j], b = of_head[j + half];
      if (weight != nullptr) {
        a = a * factor * weight[j];
        b = b * factor * weight[j + half];
      }
      a *= scale;
      b *= scale;
      if (cos != nullptr) {
        const float c = cos[j], s = cos[half + j], first = a;
        a = first * c - b * s;
        b = b * c + first * s;
      }
      of_head[j] = a;
      of_head[j + half] = b;
    }
  }
}

}  // namespace

void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows, CUstream_st* stream) {
  launch(qk_norm_rope_kernel, "qk_norm_rope", rows.rows, kThreads, kWarps * sizeof(float), stream, rows,
         static_cast<int>(shape.n_heads), static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.head_dim));
}

}  // namespace smartkv::kernels::cuda
