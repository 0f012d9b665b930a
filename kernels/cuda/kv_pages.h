// What is done with pages on a CUDA device: new rows of K and V into dense ones, tokens from one to another, dense ones into
// codes, copies, and both formats back into f32.
// Jobs are in the host's memory, what they point to on the device, and so are the tokens, rows and orders of a PageEncode.
// Launched on `stream`, not waited for. std::invalid_argument for a job that does not fit; std::runtime_error for an error of
// CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/uploads.h"
#include "kernels/kv_backend.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Tables of calls, and what they need for a moment: grow to the largest and are then reused. For calls on one stream.
struct PageWorkspace {
  UploadRing jobs;
  DeviceBuffer decoded;
  std::vector<std::byte> readings, residuals, encodings, row_encodings, rows;  // of the host: see row_table.h
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

// No slot of a call is both read and written.
void move_tokens(int64_t head_dim, std::span<const TokenMove> moves, PageWorkspace& workspace, CUstream_st* stream);
void write_tokens(int64_t head_dim, std::span<const TokenWrite> tokens, PageWorkspace& workspace, CUstream_st* stream);

// from: null: zeros.
void copy_pages(std::span<const PageCopy> copies, PageWorkspace& workspace, CUstream_st* stream);

// The bytes of kernels::quantize_page() (at a CPU level with fused multiply-add). A column that is not finite is NaN when it is
// read. Blocks are at multiples of 16. Rows of indexed pages are the bytes of kernels::encode_rows().
void encode_pages(int64_t head_dim, std::span<const PageEncode> pages, PageWorkspace& workspace, CUstream_st* stream);

void read_pages(int64_t head_dim, std::span<const PageRead> pages, PageWorkspace& workspace, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
