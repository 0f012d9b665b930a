#include "cache/policies/block_summary/summary_jobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::TokenPlace;

// Entries in host memory, in the form that block_summarizer.h expects.
struct LoadedEntries {
  std::vector<float> k, v, attention;
  EntryBlock block;

  LoadedEntries(kernels::KvBackend& backend, const CacheShape& shape, const HeadEntries& entries) {
    const int64_t dim = shape.head_dim, n = std::ssize(entries.bias);
    k.resize(static_cast<size_t>(n * dim));
    v.resize(k.size());
    float *to_k = k.data(), *to_v = v.data();
    std::vector<kernels::PageRead> reads;
    for (const kernels::KvSegment& page : entries.quantized) {
      reads.push_back({page, entries.head, 1, 0, kPageTokens, to_k, to_v, 0});
      to_k += kPageTokens * dim;
      to_v += kPageTokens * dim;
    }
    for (const TokenPlace& place : entries.tokens) {
      if (place.slot == TokenPlace::kRow) {
        const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
        backend.download(static_cast<const std::byte*>(place.k), bytes, to_k);
        backend.download(static_cast<const std::byte*>(place.v), bytes, to_v);
      } else {
        reads.push_back(kernels::read_of(place, to_k, to_v));
      }
      to_k += dim;
      to_v += dim;
    }
    backend.read(shape.type, dim, reads);
    backend.finish();
    block = {n, dim, k.data(), v.data(), entries.bias.data()};
    if (entries.queries != nullptr) attention = attention_matrix(block, *entries.queries);
  }
};

}  // namespace

void summarize(kernels::KvBackend& backend, const CacheShape& shape, std::span<const EntrySummary> jobs) {
  if (auto* const device = kernels::find_kernels<SummaryKernels>(backend)) return device->summarize(shape, jobs);
  for (const EntrySummary& job : jobs) {
    const LoadedEntries entries(backend, shape, job.entries);
    const BlockSummary summary = summarize(job.rule, entries.block, entries.attention, std::ssize(job.to));
    const size_t bytes = static_cast<size_t>(shape.head_dim) * sizeof(float);
    for (size_t i = 0; i < summary.pivots.size(); ++i) {
      const float *const k = entries.k.data() + summary.pivots[i] * shape.head_dim, *const v = summary.v.data();
      backend.upload(k, bytes, static_cast<std::byte*>(job.to[i].k));
      backend.upload(v + static_cast<int64_t>(i) * shape.head_dim, bytes, static_cast<std::byte*>(job.to[i].v));
    }
    std::copy(summary.pivots.begin(), summary.pivots.end(), job.pivots);
    std::copy(summary.group.begin(), summary.group.end(), job.group);
    std::copy(summary.bias.begin(), summary.bias.end(), job.bias);
  }
}

void entry_stats(kernels::KvBackend& backend, const CacheShape& shape, std::span<const EntryStats> jobs) {
  if (auto* const device = kernels::find_kernels<SummaryKernels>(backend)) return device->entry_stats(shape, jobs);
  for (const EntryStats& job : jobs) {
    const LoadedEntries entries(backend, shape, job.entries);
    const size_t n = job.entries.bias.size();
    std::fill_n(job.out, n, 0.0f);
    if (job.stat == EntryStat::kNovelty) {
      const SummaryRule rule{PivotRule::kCosine, ValueRule::kMean, BiasRule::kNone};
      const std::vector<float> distance = novelty(entries.block, summarize(rule, entries.block, {}, job.pivots).pivots);
      std::copy(distance.begin(), distance.end(), job.out);
    } else if (job.stat == EntryStat::kValueNorm) {
      for (size_t i = 0; i < n; ++i) {
        const float* const v = entries.v.data() + static_cast<int64_t>(i) * shape.head_dim;
        job.out[i] = std::sqrt(std::inner_product(v, v + shape.head_dim, v, 0.0f));
      }
    } else {
      for (size_t i = 0; i < entries.attention.size(); ++i) job.out[i % n] += entries.attention[i];
    }
  }
}

}  // namespace smartkv
