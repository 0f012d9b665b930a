// Row-wise operations between the matrix products, and access to the slots of dense pages.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace smartkv::kernels {

// Computes out = x / sqrt(mean(x^2) + eps) * weight (RMSNorm, Zhang & Sennrich 2019).
// x: f32 [rows, n]; weight: f32 [n]; out: [rows, n] of `type`, contiguous.
void rms_norm(ThreadPool& pool, const float* x, int64_t rows, int64_t n, const float* weight, float eps, KvType type,
              void* out);

// Computes the same for one row in f32, on the calling thread. `out` may be `x`.
void rms_norm(const float* x, int64_t n, const float* weight, float eps, float* out);

// Rotates n_heads heads in place by RoPE (Su et al. 2021), in the half-split form of Hugging Face: element j of a head
// pairs with element j + head_dim / 2. x: f32 [n_heads, head_dim]; cos, sin: f32 [head_dim / 2] for the row's position.
void rope(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin);

// Writes one token into slot `slot` of a dense page (layout: attention.h). k, v: f32 [n_kv_heads, head_dim]; page_k,
// page_v: [n_kv_heads], each head_stride bytes apart.
void store_kv(KvType type, int64_t n_kv_heads, int64_t head_dim, const float* k, const float* v, int64_t slot,
              void* page_k, void* page_v, int64_t head_stride);

// Reads slot `slot` of KV head `head` of a dense page. k, v: f32 [head_dim]; either may be null.
void load_kv(KvType type, int64_t head_dim, const KvSegment& page, int64_t head, int64_t slot, float* k, float* v);

// Copies one token of one KV head from a slot of a dense page to a slot of another dense page.
void move_kv(KvType type, int64_t head_dim, const void* from_k, const void* from_v, int64_t from_slot, void* to_k,
             void* to_v, int64_t to_slot);

}  // namespace smartkv::kernels
