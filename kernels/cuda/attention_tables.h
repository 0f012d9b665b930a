// Tables in device memory that the host passes to the attention kernels. attention_plan.h plans them.
#pragma once

#include <cstdint>

#include "kernels/quantized_page.h"
#include "kernels/rounded.h"

namespace smartkv::kernels::cuda {

constexpr int kThreads = 128;  // Threads of a block.
constexpr int kWarps = kThreads / 32;
constexpr int kPage = static_cast<int>(kPageTokens);

// A KvSegment with its quantized_offsets().
struct Segment {
  const unsigned char* k;
  const unsigned char* v;
  const float* bias;
  const uint8_t* channel_order;
  int64_t head_stride;
  int32_t tokens, kv_head;
  int32_t k_zeros, v_scales, v_zeros, k_codes, v_codes;  // Bytes from k on. k_codes is 0 for a dense page.
  // For an indexed page that is not read whole, its number among these pages of the task. -1 for other pages.
  int32_t scored;
  uint8_t k_quads[4], v_quads[4];  // CodeRuns::quads
  // A calibrated page: WidthTable::on_device, PageRotations::within_on_device() and the rotation of the page's middle.
  // Null for other pages.
  const unsigned char* widths;
  const float *within, *middle;
};

// The queries of a task.
struct Task {
  const float* q;
  int64_t q_stride;
  void* out;           // attention(): bf16; attention_mass() and promises: f32
  int64_t out_stride;  // Promises: floats from one query to the next.
  int64_t tokens;      // Tokens of all segments.
  int32_t n;           // Number of queries.
  int32_t segment;     // First segment, in the table of all segments.
};

// Rows of a block. Row r is query `query` + r / n_heads and, among the heads of the KV head, `head` + r % n_heads.
struct Rows {
  int32_t task, kv_head, head, n_heads, query, n_queries;
  // Row where the partial results of the first split begin. -1: there is one split, which writes `out`.
  int32_t partial;
  int32_t splits;
};

// A block of threads: rows over segments [segment, segment_end) of their task, from token `start` of the task on.
struct Item {
  Rows rows;
  int32_t split, segment, segment_end, start;
};

struct Shape {
  int32_t n_heads, n_kv_heads, head_dim;
  float scale;  // Scale of scores in base 2: scale log2(e).
};

// Arguments of the kernels.
struct Tables {
  Shape shape;
  const Segment* segments;
  const Task* tasks;
  const Item* items;
  // A row: head_dim floats of unnormalized output, their maximum (a base 2 exponent), their sum, two floats of padding.
  float* partial;
  int32_t stages, stage_bytes;  // Stages of shared memory for pages, and bytes of each.
};

// Floats of a row of partial results beyond head_dim.
constexpr int kPartialPadding = 4;

// Shared memory. The rows of dense K (one pair of channels), the rows of dense V (one pair of tokens) and the quads of
// codes are padded so that the lanes that read a fragment meet no bank twice: the rows of four lanes are 8 or 24 banks
// apart.
constexpr int kDenseKRow = 4 * (kPage + 8);  // Bytes of a row of dense K.
SMARTKV_HOST_DEVICE constexpr int dense_v_row(int head_dim) { return 4 * (head_dim + 8); }
SMARTKV_HOST_DEVICE constexpr int quad_stride(int bytes) { return bytes % 64 == 0 ? bytes + 32 : bytes; }
SMARTKV_HOST_DEVICE constexpr int block_rows(int extent) { return (extent + 63) / 64 * 64; }  // As in quantized_page.h.
constexpr int kBiasBytes = 4 * kPage;  // Bias at the start of a stage.
// Bytes of a decoded page: a dense page without a bias, then the rotated mean key.
SMARTKV_HOST_DEVICE constexpr int decoded_mean(int head_dim) {
  return head_dim / 2 * kDenseKRow + kPage / 2 * dense_v_row(head_dim);
}
SMARTKV_HOST_DEVICE constexpr int decoded_bytes(int head_dim) { return decoded_mean(head_dim) + 4 * head_dim; }

}  // namespace smartkv::kernels::cuda
