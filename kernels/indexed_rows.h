// The rows of an indexed page (kernels/attention.h): K and V of each token of one KV head side by side, then their means.
//
// Dense rows: [kPageTokens + 1][2][head_dim] of the page's type, the last the means. Rows of codes: for each token K's and
// V's codes [2][head_dim], 4 or 8 bits each (of two in a byte the first is the lower), and a step of each, f32 [2]; after all
// rows the means [2][head_dim] of the page's type. A value is mean + step * (code - (2^bits - 1) / 2): keys have channels far
// from 0 in every token, which the page's mean takes out (KIVI, Liu et al. 2024, has steps by channel for it).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace smartkv::kernels {

constexpr bool is_row_bits(int bits) { return bits == 0 || bits == 4 || bits == 8; }  // 0: dense rows

constexpr int64_t element_bytes(KvType type) { return type == KvType::kBf16 ? 2 : 4; }

// Bytes of a token's row.
constexpr int64_t row_bytes(KvType type, int64_t head_dim, int bits) {
  return bits == 0 ? 2 * head_dim * element_bytes(type) : 2 * head_dim * bits / 8 + 2 * static_cast<int64_t>(sizeof(float));
}
// Of all rows of a KV head, and where the means lie among them.
constexpr int64_t means_offset(KvType type, int64_t head_dim, int bits) {
  return kPageTokens * row_bytes(type, head_dim, bits);
}
constexpr int64_t indexed_rows_bytes(KvType type, int64_t head_dim, int bits) {
  return means_offset(type, head_dim, bits) + row_bytes(type, head_dim, 0);
}

// A token's row, or the means.
struct IndexedRow {
  const char* dense = nullptr;  // [2][head_dim] of the page's type: the row, or the means that its codes are relative to
  const char* codes = nullptr;  // null: the row is dense
  int bits = 0;                 // of the codes
};

// k, v: f32 [kPageTokens, head_dim]; to: indexed_rows_bytes().
void encode_rows(KvType type, int64_t head_dim, int bits, const float* k, const float* v, void* to);

}  // namespace smartkv::kernels
