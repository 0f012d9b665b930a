// Computes on the entries of a KV head where their pages are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache/policies/block_summary/block_summarizer.h"
#include "cache/sequence_cache.h"
#include "kernels/kv_backend.h"

namespace smartkv {

namespace kernels::cuda {
class DeviceKvBackend;
}

// Entries of a KV head in order of position: whole quantized pages first, then single tokens.
struct HeadEntries {
  std::span<const kernels::KvSegment> quantized;  // pages of all KV heads
  int64_t head = 0;                               // index of the KV head in `quantized`
  std::span<const kernels::TokenPlace> tokens;
  std::span<const float> bias;              // one for each entry
  const SampledQueries* queries = nullptr;  // null if not needed
};

// Summarizes entries as summarize() of block_summarizer.h does.
struct EntrySummary {
  HeadEntries entries;
  SummaryRule rule;
  std::span<const kernels::TokenPlace> to;  // rows for K and V, one for each summary
  int32_t* pivots = nullptr;                // results in host memory: see BlockSummary
  int32_t* group = nullptr;
  float* bias = nullptr;
};

// A measure of how much an entry stands out.
enum class EntryStat : uint8_t {
  kNovelty,    // 1 - cosine between its key and the nearest pivot; pivots are chosen by farthest-point sampling
  kValueNorm,  // |v|
  kAttention,  // sum of the attention from the queries
};
// Computes this measure for each entry.
struct EntryStats {
  HeadEntries entries;
  EntryStat stat = EntryStat::kValueNorm;
  int64_t pivots = 0;    // kNovelty: number of pivots
  float* out = nullptr;  // f32 [entries], in host memory
};

// A device's own implementation. It computes what the functions below compute on the host, up to rounding.
class SummaryKernels : public kernels::PolicyKernels {
 public:
  virtual void summarize(const CacheShape& shape, std::span<const EntrySummary> jobs) = 0;
  virtual void entry_stats(const CacheShape& shape, std::span<const EntryStats> jobs) = 0;
};
std::unique_ptr<SummaryKernels> make_cuda_summary_kernels(kernels::cuda::DeviceKvBackend& backend);

// Queue jobs, as the functions of kernels::PageOps do, on any backend. Results in host memory are valid after finish().
void summarize(kernels::KvBackend& backend, const CacheShape& shape, std::span<const EntrySummary> jobs);
void entry_stats(kernels::KvBackend& backend, const CacheShape& shape, std::span<const EntryStats> jobs);

}  // namespace smartkv
