// Fewer entries of a KV head out of many, and what makes one stand out, on a CUDA device: kernels/block_summarizer.h within
// rounding, a block of threads for each job.
// Jobs are in the host's memory, what they point to on the device, results included. Launched on `stream`, not waited for.
// std::invalid_argument for a job that does not fit; std::runtime_error for an error of CUDA.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

// HeadEntries of which all that they point to is on the device; but `codes`, in the host's memory.
struct DeviceEntries {
  std::span<const KvSegment> codes;
  int64_t head = 0;
  const TokenPlace* tokens = nullptr;
  int64_t n = 0;                   // of all entries
  const float* bias = nullptr;
  int64_t n_queries = 0;
  const float* q = nullptr;        // [n_queries, head_dim]
  const float* log_norm = nullptr;
};

struct DeviceSummary {
  DeviceEntries entries;
  SummaryRule rule;
  int64_t summaries = 0;           // at most as many as entries
  const TokenPlace* to = nullptr;
  int32_t* pivots = nullptr;
  int32_t* group = nullptr;
  float* bias = nullptr;
};

struct DeviceFigures {
  DeviceEntries entries;
  EntryFigure figure = EntryFigure::kValueNorm;
  int64_t pivots = 0;
  float* out = nullptr;
};

// What they need for a moment.
struct SummaryWorkspace {
  DeviceBuffer scratch;
};

void summarize_entries(int64_t head_dim, std::span<const DeviceSummary> jobs, PageWorkspace& workspace,
                       SummaryWorkspace& summaries, CUstream_st* stream);
void find_figures(int64_t head_dim, std::span<const DeviceFigures> jobs, PageWorkspace& workspace, SummaryWorkspace& summaries,
                  CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
