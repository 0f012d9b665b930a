// attention() and attention_mass() of kernels/attention.h on a CUDA device: the same tasks over the same bytes of pages.
// Tasks and their lists of segments are in the host's memory; q, out, mass, pages, bias and channel_order are on the device.
//
// Of a KV head all query heads and queries that fit are the rows of one block of threads, so that a page is read once for
// them, and the codes for up to 16 rows are decoded once. The context is split at fixed segments and the parts are merged by
// log-sum-exp (Flash-Decoding, Dao et al. 2023). Products run on tensor cores in bf16, or f16, with f32 sums; the scales of a
// quantised page are folded into the query and the probabilities, codes are exact.
//
// Next to the CPU's contract:
//   - shape.type is kBf16: dense pages and `out`. head_dim is a multiple of 16 up to 256.
//   - Pages, bias and `out` are aligned to 16 bytes.
//   - A query's bits depend on its own segments and, without indexed pages, on the number of queries in its task, not on the
//     other tasks.
#pragma once

#include <span>

#include "kernels/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/sparse_attention.h"
#include "kernels/cuda/uploads.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Tables and partial results of a call: grow to the largest one and are then reused. For calls on one stream.
struct AttentionWorkspace {
  AttentionPlan plan;
  UploadRing tables;
  DeviceBuffer partial;
  SparseWorkspace sparse;
};

// Launched on `stream`, not waited for. std::invalid_argument as on the CPU; std::runtime_error for an error of CUDA.
void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionWorkspace& workspace,
               CUstream_st* stream);

// Two passes over K: sums of the rows, then their probabilities.
void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks, AttentionWorkspace& workspace,
                    CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
