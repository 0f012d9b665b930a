// Summaries of the entries of a KV head, and statistics that show which entries stand out, on a CUDA device. Results
// are those of kernels/block_summarizer.h within rounding. Each job takes a block of threads.
//
// Jobs are in host memory. Everything that they point to is on the device, results included. All functions launch on
// `stream` and do not wait. They throw std::invalid_argument for a job that does not fit, and std::runtime_error on
// CUDA errors.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

// HeadEntries with everything on the device, except for the list `codes`, which is in host memory.
struct DeviceEntries {
  std::span<const KvSegment> codes;
  int64_t head = 0;
  const TokenPlace* tokens = nullptr;
  int64_t n = 0;                   // Number of all entries.
  const float* bias = nullptr;
  int64_t n_queries = 0;
  const float* q = nullptr;        // [n_queries, head_dim]
  const float* log_norm = nullptr;
};

// An EntrySummary with everything on the device.
struct DeviceSummary {
  DeviceEntries entries;
  SummaryRule rule;
  int64_t summaries = 0;           // At most the number of entries.
  const TokenPlace* to = nullptr;
  int32_t* pivots = nullptr;
  int32_t* group = nullptr;
  float* bias = nullptr;
};

// EntryStats with everything on the device.
struct DeviceStats {
  DeviceEntries entries;
  EntryStat figure = EntryStat::kValueNorm;
  int64_t pivots = 0;
  float* out = nullptr;
};

// Scratch of the jobs.
struct SummaryWorkspace {
  DeviceBuffer scratch;
};

void summarize_entries(int64_t head_dim, std::span<const DeviceSummary> jobs, PageWorkspace& workspace,
                       SummaryWorkspace& summaries, CUstream_st* stream);
void entry_stats(int64_t head_dim, std::span<const DeviceStats> jobs, PageWorkspace& workspace, SummaryWorkspace& summaries,
                  CUstream_st* stream);

}  // namespace smartkv::kernels::cuda
