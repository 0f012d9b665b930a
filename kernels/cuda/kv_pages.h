// Operations on pages of a CUDA device: writing new rows of K and V into dense pages, moving tokens between pages,
// encoding quantized pages, copying, and reading both formats back into f32.
//
// Jobs are in host memory. Everything that they point to is on the device, the tokens, rows and orders of a PageEncode
// included. All functions launch on `stream` and do not wait. They throw std::invalid_argument for a job that does not
// fit, and std::runtime_error on CUDA errors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/uploads.h"
#include "kernels/page_ops.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Tables and scratch of calls. They grow to the largest call and are then reused. Only for calls on one stream.
struct PageWorkspace {
  UploadRing jobs;
  DeviceBuffer scratch;  // Contents last for one call.
  std::vector<std::byte> readings, residuals, encodings, row_encodings, rows,
      calibrated;  // In host memory: see row_table.h.
};

// Tokens to write to slots [slot, slot + n) of one dense page of bf16.
struct KvWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], rows row_stride floats apart
  const float* v = nullptr;
  int64_t row_stride = 0;
  // [n, head_dim]: cos, then sin, of each row, by which K is rotated (rope() in kernels/elementwise.h). Null if K is
  // rotated already.
  const float* angles = nullptr;
  int32_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], each head_stride bytes apart
  void* page_v = nullptr;
  int64_t head_stride = 0;
};
void write_kv(const AttentionShape& shape, std::span<const KvWrite> writes, PageWorkspace& workspace,
              CUstream_st* stream);

// REQUIRES: no slot of a call is both read and written.
void move_tokens(int64_t head_dim, std::span<const TokenMove> moves, PageWorkspace& workspace, CUstream_st* stream);

// Copies bytes of pages. If `from` is null, writes zeros.
void copy_pages(std::span<const PageCopy> copies, PageWorkspace& workspace, CUstream_st* stream);

// Writes the bytes of kernels::quantize_page() (at a CPU level with fused multiply-add), and of kernels::encode_rows()
// for the rows of indexed pages. A column with a value that is not finite reads as NaN. REQUIRES: blocks are at
// multiples of 16 bytes.
void encode_pages(int64_t head_dim, std::span<const PageEncode> pages, PageWorkspace& workspace, CUstream_st* stream);

void read_pages(int64_t head_dim, std::span<const PageRead> pages, PageWorkspace& workspace, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
