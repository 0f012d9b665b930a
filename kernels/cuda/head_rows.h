// finish_heads() of kernels/head_rows.h on a CUDA device.
#pragma once

#include "kernels/head_rows.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Rows in the device's memory. Launched on `stream`, not waited for. std::runtime_error for an error of CUDA.
void finish_heads(const AttentionShape& shape, const HeadRows& rows, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
