// The rows of an indexed page (kernels/attention.h) for one KV head: K and V of each token side by side, then their
// means.
//
//  - Dense rows are [kPageTokens + 1][2][head_dim] of the page's type. The last row holds the means.
//  - Quantized rows hold for each token the codes of K and V, [2][head_dim] of 4 or 8 bits, and then the steps of K and
//    V, f32 [2]. A byte with two codes holds the first one in its low bits. After all rows follow the means,
//    [2][head_dim] of the page's type.
//
// The value of a code is mean + step * (code - (2^bits - 1) / 2). Keys have channels that are far from 0 in every
// token, and subtracting the page's mean removes that offset. KIVI (Liu et al. 2024) uses one step per channel for the
// same purpose.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace smartkv::kernels {

constexpr bool is_row_bits(int bits) { return bits == 0 || bits == 4 || bits == 8; }  // 0: dense rows

constexpr int64_t element_bytes(KvType type) { return type == KvType::kBf16 ? 2 : 4; }

// Returns the bytes of a token's row.
constexpr int64_t row_bytes(KvType type, int64_t head_dim, int bits) {
  return bits == 0 ? 2 * head_dim * element_bytes(type)
                   : 2 * head_dim * bits / 8 + 2 * static_cast<int64_t>(sizeof(float));
}
// Return where the means of a KV head begin, and the bytes of all its rows, the means included.
constexpr int64_t means_offset(KvType type, int64_t head_dim, int bits) {
  return kPageTokens * row_bytes(type, head_dim, bits);
}
constexpr int64_t indexed_rows_bytes(KvType type, int64_t head_dim, int bits) {
  return means_offset(type, head_dim, bits) + row_bytes(type, head_dim, 0);
}

// Where a token's row, or the row of means, lies.
struct IndexedRow {
  // [2][head_dim] of the page's type: the row, or, with `codes`, the means that the codes are relative to.
  const char* dense = nullptr;
  const char* codes = nullptr;  // Null if the row is dense.
  int bits = 0;                 // Bits of a code.
};

// Writes all rows of a KV head, and their means. k, v: f32 [kPageTokens, head_dim]; bits: 0, 4 or 8; to:
// indexed_rows_bytes() bytes.
void encode_rows(KvType type, int64_t head_dim, int bits, const float* k, const float* v, void* to);

}  // namespace smartkv::kernels
