// The rows of indexed pages (kernels/indexed_rows.h) on a CUDA device: the CPU's bytes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/page_values.h"
#include "kernels/cuda/uploads.h"

namespace smartkv::kernels::cuda {

// Of one KV head. rows: indexed_rows_bytes(), at a multiple of 16.
struct RowEncoding {
  HeadValues from;
  unsigned char* rows;
  int32_t bits, row_bytes, means;  // means: where they lie
};
RowEncoding row_encoding(const HeadValues& from, int64_t head_dim, int bits, void* rows);

// Launched on `stream`, not waited for.
void encode_rows(int64_t head_dim, std::span<const RowEncoding> jobs, UploadRing& tables, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
