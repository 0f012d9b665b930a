// The rows of indexed pages (kernels/indexed_rows.h) on a CUDA device, with the same bytes as on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/page_values.h"
#include "kernels/cuda/uploads.h"

namespace smartkv::kernels::cuda {

// The encoding of one KV head. rows: indexed_rows_bytes() bytes, at a multiple of 16.
struct RowEncoding {
  HeadValues from;
  unsigned char* rows;
  int32_t bits, row_bytes, means;  // means: offset of the means
};
RowEncoding row_encoding(const HeadValues& from, int64_t head_dim, int bits, void* rows);

// Launches on `stream` and does not wait.
void encode_rows(int64_t head_dim, std::span<const RowEncoding> jobs, UploadRing& tables, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
