#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

// Return the offsets, in elements, of (d, slot) in K and in V of a dense page.
int64_t k_offset(KvType type, int64_t d, int64_t slot) {
  return type == KvType::kBf16 ? (d / 2 * kPageTokens + slot) * 2 + d % 2 : d * kPageTokens + slot;
}
int64_t v_offset(KvType type, int64_t head_dim, int64_t d, int64_t slot) {
  return type == KvType::kBf16 ? (slot / 2 * head_dim + d) * 2 + slot % 2 : slot * head_dim + d;
}

template <typename Element>
void move_elements(KvType type, int64_t head_dim, const void* from_k, const void* from_v, int64_t from_slot, void* to_k,
                   void* to_v, int64_t to_slot) {
  for (int64_t d = 0; d < head_dim; ++d) {
    static_cast<Element*>(to_k)[k_offset(type, d, to_slot)] =
        static_cast<const Element*>(from_k)[k_offset(type, d, from_slot)];
    static_cast<Element*>(to_v)[v_offset(type, head_dim, d, to_slot)] =
        static_cast<const Element*>(from_v)[v_offset(type, head_dim, d, from_slot)];
  }
}

}  // namespace

void rms_norm(ThreadPool& pool, const float* x, int64_t rows, int64_t n, const float* weight, float eps, KvType type,
              void* out) {
  constexpr int64_t kRowsPerTask = 8;  // a few microseconds of work
  const auto row_kernel = cpu_kernels().elementwise->rms_norm_row;
  const int64_t bytes = n * (type == KvType::kBf16 ? 2 : 4);
  pool.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t r = task * kRowsPerTask; r < end; ++r) {
      row_kernel(x + r * n, n, weight, eps, type, static_cast<char*>(out) + r * bytes);
    }
  });
}

void rms_norm(const float* x, int64_t n, const float* weight, float eps, float* out) {
  cpu_kernels().elementwise->rms_norm_row(x, n, weight, eps, KvType::kF32, out);
}

void rope(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin) {
  cpu_kernels().elementwise->rope(x, n_heads, head_dim, cos, sin);
}

void store_kv(KvType type, int64_t n_kv_heads, int64_t head_dim, const float* k, const float* v, int64_t slot,
              void* page_k, void* page_v, int64_t head_stride) {
  for (int64_t h = 0; h < n_kv_heads; ++h, k += head_dim, v += head_dim) {
    char* to_k = static_cast<char*>(page_k) + h * head_stride;
    char* to_v = static_cast<char*>(page_v) + h * head_stride;
    for (int64_t d = 0; d < head_dim; ++d) {
      const int64_t at_k = k_offset(type, d, slot), at_v = v_offset(type, head_dim, d, slot);
      if (type == KvType::kBf16) {
        reinterpret_cast<uint16_t*>(to_k)[at_k] = to_bf16(k[d]);
        reinterpret_cast<uint16_t*>(to_v)[at_v] = to_bf16(v[d]);
      } else {
        reinterpret_cast<float*>(to_k)[at_k] = k[d];
        reinterpret_cast<float*>(to_v)[at_v] = v[d];
      }
    }
  }
}

void load_kv(KvType type, int64_t head_dim, const KvSegment& page, int64_t head, int64_t slot, float* k, float* v) {
  const char* from_k = static_cast<const char*>(page.k) + head * page.head_stride;
  const char* from_v = static_cast<const char*>(page.v) + head * page.head_stride;
  for (int64_t d = 0; d < head_dim; ++d) {
    const int64_t at_k = k_offset(type, d, slot), at_v = v_offset(type, head_dim, d, slot);
    if (type == KvType::kBf16) {
      if (k != nullptr) k[d] = from_bf16(reinterpret_cast<const uint16_t*>(from_k)[at_k]);
      if (v != nullptr) v[d] = from_bf16(reinterpret_cast<const uint16_t*>(from_v)[at_v]);
    } else {
      if (k != nullptr) k[d] = reinterpret_cast<const float*>(from_k)[at_k];
      if (v != nullptr) v[d] = reinterpret_cast<const float*>(from_v)[at_v];
    }
  }
}

void move_kv(KvType type, int64_t head_dim, const void* from_k, const void* from_v, int64_t from_slot, void* to_k,
             void* to_v, int64_t to_slot) {
  const auto move = type == KvType::kBf16 ? move_elements<uint16_t> : move_elements<uint32_t>;
  move(type, head_dim, from_k, from_v, from_slot, to_k, to_v, to_slot);
}

}  // namespace smartkv::kernels
