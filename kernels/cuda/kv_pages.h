// Pages on a CUDA device: new rows of K and V into dense ones, tokens from one to another, dense ones into codes, and both back
// into f32.
// Jobs are in the host's memory, what they point to on the device. Launched on `stream`, not waited for.
// std::invalid_argument for a job that does not fit the shape; std::runtime_error for an error of CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/device_buffer.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// The jobs of a call on the device: grows to the largest one and is then reused. For calls on one stream.
struct PageWorkspace {
  std::vector<std::byte> host;
  DeviceBuffer jobs;
};

// Tokens that go to slots [slot, slot + n) of one dense page of bf16.
struct KvWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], rows row_stride floats apart
  const float* v = nullptr;
  int64_t row_stride = 0;
  // [n, head_dim]: each row's cos, then sin, by which K is rotated (rope() in kernels/elementwise.h); null: it is already.
  const float* angles = nullptr;
  int32_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], each head_stride bytes apart
  void* page_v = nullptr;
  int64_t head_stride = 0;
};
void write_kv(const AttentionShape& shape, std::span<const KvWrite> writes, PageWorkspace& workspace, CUstream_st* stream);

// One token of one KV head from a slot of a dense page to one of this or another. No slot of a call is both read and written.
struct SlotMove {
  const void* from_k = nullptr;  // of the KV head
  const void* from_v = nullptr;
  void* to_k = nullptr;
  void* to_v = nullptr;
  int32_t from_slot = 0, to_slot = 0;
};
void move_tokens(const AttentionShape& shape, std::span<const SlotMove> moves, PageWorkspace& workspace, CUstream_st* stream);

// A dense page of kPageTokens tokens, or one KV head of it, as codes.
struct EncodeJob {
  KvSegment page;                          // kDense; kv_head as there
  const uint8_t* token_order = nullptr;    // [n_kv_heads, kPageTokens]: the slots of the codes' tokens; null: as they are
  const uint8_t* channel_order = nullptr;  // [n_kv_heads, head_dim], see quantized_page.h
  QuantizedLayout layout;
  void* blocks = nullptr;  // [n_kv_heads] of quantized_offsets().total bytes, each block_stride apart; at a multiple of 16
  int64_t block_stride = 0;
};
// The bytes of kernels::quantize_page() (at a CPU level with fused multiply-add). A column that is not finite leaves its block
// without meaning and adds to *not_finite, which is on the device.
void encode_pages(const AttentionShape& shape, std::span<const EncodeJob> jobs, int32_t* not_finite, PageWorkspace& workspace,
                  CUstream_st* stream);

// A page of either format: k, v: f32 [n_kv_heads, tokens, head_dim], channels in their own order; of one KV head if it is
// one's. Either may be null.
struct ReadJob {
  KvSegment page;
  float* k = nullptr;
  float* v = nullptr;
};
void read_pages(const AttentionShape& shape, std::span<const ReadJob> jobs, PageWorkspace& workspace, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
