// attention() and attention_mass() of kernels/attention.h on a CUDA device: the same tasks over the same bytes of
// pages. Tasks and their lists of segments are in host memory. q, out, mass, pages, bias and channel_order are on the
// device.
//
// A block of threads takes all query heads of a KV head, and as many queries as fit, as its rows. So a page is read
// once for these rows, and its codes are decoded once for up to 16 rows. The context is split at fixed segments, and
// the parts are merged by log-sum-exp (Flash-Decoding, Dao et al. 2023). Products run on tensor cores in bf16 or f16,
// with f32 sums. The scales of a quantized page are folded into the query and the probabilities, and codes are exact.
//
// In addition to the contract of the CPU:
//  - shape.type is kBf16, for dense pages and `out`. head_dim is a multiple of 16 up to 256.
//  - Pages, bias and `out` are aligned to 16 bytes.
//  - The bits of a query depend on its own segments and, without indexed pages, on the number of queries in its task.
//    They do not depend on the other tasks.
#pragma once

#include <span>

#include "kernels/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/sparse_attention.h"
#include "kernels/cuda/uploads.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Tables and partial results of calls. They grow to the largest call and are then reused. Only for calls on one stream.
struct AttentionWorkspace {
  AttentionPlan plan;
  UploadRing tables;
  DeviceBuffer partial;
  SparseWorkspace sparse;
};

// Launches attention() on `stream` and does not wait. Throws std::invalid_argument as on the CPU, and
// std::runtime_error on CUDA errors.
void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionWorkspace& workspace,
               CUstream_st* stream);

// Does the same for attention_mass(), in two passes over K: the sums of the rows, then their probabilities.
void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionWorkspace& workspace, CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
