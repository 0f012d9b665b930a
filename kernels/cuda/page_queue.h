// Jobs on pages of a CUDA device that wait to be launched together. The jobs of a call wait for earlier jobs that touch
// the same page, if one of them writes it. So jobs fall into waves. A wave is one launch for each kind of job, over all
// sequences and layers. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device_pool.h"
#include "kernels/cuda/stats_jobs.h"
#include "kernels/cuda/kv_pages.h"

namespace smartkv::kernels::cuda {

class PageQueue {
 public:
  // Empties the queue. batch: not 0, and different from that of any other queue of this pool.
  void begin(DevicePool* pool, uint64_t batch);
  bool empty() const { return waves_ == 0 && zeros_.empty() && released_.empty(); }
  int64_t head_dim() const { return head_dim_; }  // head_dim of all jobs. 0: there are none yet.

  void zero(std::byte* page, size_t bytes);  // REQUIRES: no job touches the page yet.
  // Queue the jobs of the KvBackend calls of the same names. Throw std::invalid_argument for memory that is no page of
  // the pool.
  void move(int64_t head_dim, std::span<const TokenMove> moves);
  void write_tokens(int64_t head_dim, std::span<const TokenWrite> tokens);
  void copy(std::span<const PageCopy> copies);
  void encode(int64_t head_dim, std::span<const PageEncode> pages);
  void read(int64_t head_dim, std::span<const PageRead> pages);
  void score(int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const DeviceGate> gate, std::span<const TokenScoring> layers);
  void page_stats(int64_t head_dim, std::span<const PageStats> pages);
  void multiply_keys(int64_t head_dim, std::span<const KeyProducts> products);
  void summarize(int64_t head_dim, std::span<const EntrySummary> summaries);
  void entry_stats(int64_t head_dim, std::span<const EntryStats> entries);
  void release(std::byte* page) { released_.push_back(page); }  // Once all jobs before it are launched.

  // Launches everything. If anything is read, waits until the results are there.
  void run(PageWorkspace& workspace, SummaryWorkspace& summaries, CUstream_st* stream);
  // Pages that may be freed after run().
  std::span<std::byte* const> released() const { return released_; }

 private:
  struct Encode {
    PageEncode page;
    KvSegment codes;
    KvSegment residual;
    size_t tokens, order, codes_order, residual_order, k, v;  // Offsets in the staging. kNone: there is none.
  };
  struct Wave {
    std::vector<TokenMove> moves;
    std::vector<TokenWrite> writes;  // k, v: offsets in the staging
    std::vector<PageCopy> copies;
    std::vector<Encode> encodes;
    std::vector<PageRead> reads;
    std::vector<size_t> read_orders;  // Offsets in the staging. kNone: there is none.
    StatsJobs figures;
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  struct Touched {
    DevicePool::Page page;
    bool writes;
  };

  // A call first names the pages that it touches. wave() then returns the wave where it belongs.
  void reads(const void* address) { touch(address, false); }
  void writes(const void* address) { touch(address, true); }
  void touch(const void* address, bool writes);
  void touch_entries(const HeadEntries& entries);
  Wave& wave();
  size_t stage(const void* from, size_t bytes) { return from == nullptr ? kNone : staging_.add(from, bytes); }
  void run_encodes(const Wave& wave, const std::byte* staged, PageWorkspace& workspace, CUstream_st* stream);
  float* run_reads(const Wave& wave, const std::byte* staged, float* results, PageWorkspace& workspace, CUstream_st* stream);
  void hand_out_results() const;

  DevicePool* pool_ = nullptr;
  uint64_t batch_ = 0;
  int64_t head_dim_ = 0;
  std::vector<Touched> touched_;
  std::vector<PageCopy> zeros_;
  std::vector<Wave> all_waves_;  // The first `waves_` are in use.
  size_t waves_ = 0;
  std::vector<std::byte*> released_;
  Staging staging_;
  size_t result_floats_ = 0;  // Floats of all reads.
  ResultSpace figures_;       // Results of statistics, behind those of reads.
  HostBuffer results_;
  DeviceBuffer device_results_;
  // Reused for each wave.
  std::vector<TokenWrite> token_writes_;
  std::vector<PageEncode> encodes_;
  std::vector<KvSegment> codes_, residuals_;
  std::vector<PageRead> reads_;
};

}  // namespace smartkv::kernels::cuda
