// Jobs of one wave of a PageQueue that compute statistics for the host (page_stats.h, summaries.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/page_stats.h"
#include "kernels/cuda/summaries.h"
#include "kernels/cuda/uploads.h"

namespace smartkv::kernels::cuda {

// Lays out the results of all waves in one region of memory, and knows where they go on the host.
class ResultSpace {
 public:
  void clear();
  size_t bytes() const { return bytes_; }
  // Reserves room for rows of `row_bytes` bytes, and returns its offset. The rows go to rows `stride` bytes apart from
  // `to` on. Returns kNone if `to` is null.
  size_t add(void* to, size_t row_bytes, size_t rows = 1, size_t stride = 0);
  // Copies all results to their places on the host. from: offset 0, in host memory.
  void hand_out(const std::byte* from) const;

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  struct Result {
    std::byte* to;
    size_t at, row_bytes, rows, stride;
  };
  std::vector<Result> results_;
  size_t bytes_ = 0;
};

// The statistics jobs of a wave.
class StatsJobs {
 public:
  bool empty() const { return scorings_.empty() && studies_.empty() && products_.empty() && summaries_.empty() && figures_.empty(); }
  void clear();

  // Add jobs. They copy what the jobs point to in host memory. REQUIRES: the pages that they read stay until launch().
  void score(int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const DeviceGate> gate, std::span<const TokenScoring> layers,
             Staging& staging, ResultSpace& results);
  void page_stats(int64_t head_dim, std::span<const PageStats> pages, ResultSpace& results);
  void multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, Staging& staging, ResultSpace& results);
  void summarize(int64_t head_dim, std::span<const EntrySummary> summaries, Staging& staging, ResultSpace& results);
  void entry_stats(int64_t head_dim, std::span<const EntryStats> entries, Staging& staging, ResultSpace& results);

  // Launches all jobs on `stream`. staged, results: where offset 0 of the staging and of the results is on the device.
  void launch(int64_t head_dim, const std::byte* staged, std::byte* results, PageWorkspace& workspace,
              SummaryWorkspace& summaries, CUstream_st* stream);

 private:
  // A part of a vector that may still grow.
  struct Range {
    size_t first, n;
  };
  struct ScoreCall {
    std::shared_ptr<const DeviceGate> gate;
    int64_t n_kv_heads;
    size_t end;  // End of its layers in scorings_.
  };
  struct Scoring {
    TokenScoring job;
    Range pages;
    size_t angles, scores, importance;
  };
  struct Study {
    PageStats job;
    size_t k_range, v_range, k_squares, v_squares;
  };
  struct Products {
    KeyProducts job;
    KvSegment residual;
    bool has_residual;
    size_t order, residual_order, q, out;
  };
  struct Entries {
    DeviceEntries of;
    Range pages;
    size_t tokens, bias, q, log_norm;
  };
  struct Summary {
    DeviceSummary job;
    Entries entries;
    size_t to, pivots, group, bias;
  };
  struct Figures {
    DeviceStats job;
    Entries entries;
    size_t out;
  };
  class CallStaging;

  Range add_pages(std::span<const KvSegment> pages, size_t order_bytes, CallStaging* staging);
  Entries add_entries(int64_t head_dim, const HeadEntries& from, CallStaging* staging);
  DeviceEntries placed(const Entries& from, const std::byte* staged) const;
  void launch_scores(int64_t head_dim, const std::byte* staged, std::byte* results, PageWorkspace& workspace, CUstream_st* stream);

  std::vector<KvSegment> pages_;      // Pages of jobs that have several.
  std::vector<size_t> page_orders_;   // Offsets of their channel orders in the staging.
  std::vector<ScoreCall> score_calls_;
  std::vector<Scoring> scorings_;
  std::vector<Study> studies_;
  std::vector<Products> products_;
  std::vector<Summary> summaries_;
  std::vector<Figures> figures_;
};

}  // namespace smartkv::kernels::cuda
