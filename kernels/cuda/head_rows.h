// qk_norm_rope() of kernels/head_rows.h on a CUDA device.
#pragma once

#include "kernels/head_rows.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Rows are in device memory. Launches on `stream` and does not wait. Throws std::runtime_error on CUDA errors.
void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
