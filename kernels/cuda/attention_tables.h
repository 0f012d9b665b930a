// What the host tells the kernels of attention: rows of tables in the device's memory, planned by attention_plan.h.
#pragma once

#include <cstdint>

#include "kernels/quantized_page.h"
#include "kernels/rounded.h"

namespace smartkv::kernels::cuda {

constexpr int kThreads = 128;  // of a block
constexpr int kWarps = kThreads / 32;
constexpr int kPage = static_cast<int>(kPageTokens);

// KvSegment, with quantized_offsets().
struct Segment {
  const unsigned char* k;
  const unsigned char* v;
  const float* bias;
  const uint8_t* channel_order;
  int64_t head_stride;
  int32_t tokens, kv_head;
  int32_t k_zeros, v_scales, v_zeros, k_codes, v_codes;  // bytes from k on; k_codes is 0 in a dense page
  int32_t scored;  // of an indexed page that is not read whole: which of the task's; of others -1
  uint8_t k_quads[4], v_quads[4];                        // CodeRuns::quads
};

struct Task {
  const float* q;
  int64_t q_stride;
  void* out;        // of attention(): bf16; of attention_mass() and promises: f32
  int64_t out_stride;  // of promises: floats from a query to the next
  int64_t tokens;   // of all segments
  int32_t n;        // queries
  int32_t segment;  // the first, in the table of all segments
};

// Rows of a block: row r is query `query` + r / n_heads and, of the KV head's heads, `head` + r % n_heads.
struct Rows {
  int32_t task, kv_head, head, n_heads, query, n_queries;
  int32_t partial;  // where the partial results of their first split begin, in rows; -1: there is one split, which writes `out`
  int32_t splits;
};

// A block of threads: rows over segments [segment, segment_end) of their task, `start` tokens into it.
struct Item {
  Rows rows;
  int32_t split, segment, segment_end, start;
};

struct Shape {
  int32_t n_heads, n_kv_heads, head_dim;
  float scale;  // of scores in base 2: scale log2(e)
};

struct Tables {
  Shape shape;
  const Segment* segments;
  const Task* tasks;
  const Item* items;
  float* partial;  // a row: head_dim floats of unnormalised output, its maximum (a base 2 exponent), its sum, two of padding
  int32_t stages, stage_bytes;  // of shared memory, for pages
};

constexpr int kPartialPadding = 4;

// Shared memory. A row of tokens of dense K (one pair of channels), a row of dense V (one pair of tokens) and a quad of codes
// are padded so that the lanes that read a fragment meet no bank twice: the rows of four lanes are 8 or 24 banks apart.
constexpr int kDenseKRow = 4 * (kPage + 8);  // bytes
SMARTKV_HOST_DEVICE constexpr int dense_v_row(int head_dim) { return 4 * (head_dim + 8); }
SMARTKV_HOST_DEVICE constexpr int quad_stride(int bytes) { return bytes % 64 == 0 ? bytes + 32 : bytes; }
SMARTKV_HOST_DEVICE constexpr int block_rows(int extent) { return (extent + 63) / 64 * 64; }  // quantized_page.h's
constexpr int kBiasBytes = 4 * kPage;  // at the start of a stage

}  // namespace smartkv::kernels::cuda
