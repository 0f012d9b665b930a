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
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/wave_jobs.h"

namespace smartkv::kernels::cuda {

class PageQueue {
 public:
  // Empties the queue. batch: not 0, and different from that of any other queue of this pool.
  void begin(DevicePool* pool, uint64_t batch);
  bool empty() const { return waves_ == 0 && zeros_.empty() && released_.empty(); }
  int64_t head_dim() const { return head_dim_; }  // head_dim of all jobs. 0: there are none yet.

  void zero(std::byte* page, size_t bytes);  // REQUIRES: no job touches the page yet.
  // Begins a call that adds jobs on pages of this head_dim. REQUIRES: head_dim() is 0 or the same.
  void start(int64_t head_dim);
  // Queue the jobs of the KvBackend calls of the same names. Throw std::invalid_argument for memory that is no page of
  // the pool. REQUIRES: start() was called before, except for copy().
  void move(std::span<const TokenMove> moves);
  void copy(std::span<const PageCopy> copies);
  void encode(std::span<const PageEncode> pages);
  // For jobs with results for the host. After start(), the call names the page of each address that its jobs read or
  // write. Then jobs() returns the jobs of this kind in the wave where the call belongs. `Jobs` is a WaveJobs.
  void reads(const void* address) { touch(address, false); }
  void writes(const void* address) { touch(address, true); }
  template <typename Jobs>
  Jobs& jobs() {
    auto& kinds = wave().kinds;
    for (const auto& kind : kinds) {
      if (auto* const found = dynamic_cast<Jobs*>(kind.get())) return *found;
    }
    return static_cast<Jobs&>(*kinds.emplace_back(std::make_unique<Jobs>()));
  }
  Staging& staging() { return staging_; }
  ResultSpace& results() { return result_space_; }
  void release(std::byte* page) { released_.push_back(page); }  // Once all jobs before it are launched.

  // Launches everything. If anything is read, waits until the results are there.
  void run(PageWorkspace& workspace, CUstream_st* stream);
  // Pages that may be freed after run().
  std::span<std::byte* const> released() const { return released_; }

 private:
  struct Encode {
    PageEncode page;
    KvSegment quantized;
    KvSegment residual;
    size_t tokens, order, quantized_order, residual_order, wide;  // Offsets in the staging. kNone: there is none.
  };
  struct Wave {
    std::vector<TokenMove> moves;
    std::vector<PageCopy> copies;
    std::vector<Encode> encodes;
    std::vector<std::unique_ptr<WaveJobs>> kinds;
  };
  static constexpr size_t kNone = ResultSpace::kNone;

  struct Touched {
    DevicePool::Page page;
    bool writes;
  };

  void touch(const void* address, bool writes);
  Wave& wave();  // Returns the wave of a call that touches these pages.
  size_t stage(const void* from, size_t bytes) { return from == nullptr ? kNone : staging_.add(from, bytes); }
  void run_encodes(const Wave& wave, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream);

  DevicePool* pool_ = nullptr;
  uint64_t batch_ = 0;
  int64_t head_dim_ = 0;
  std::vector<Touched> touched_;
  std::vector<PageCopy> zeros_;
  std::vector<Wave> all_waves_;  // The first `waves_` are in use.
  size_t waves_ = 0;
  std::vector<std::byte*> released_;
  Staging staging_;
  ResultSpace result_space_;
  HostBuffer results_;
  DeviceBuffer device_results_;
  // Reused for each wave.
  std::vector<PageEncode> encodes_;
  std::vector<KvSegment> quantized_, residuals_;
};

}  // namespace smartkv::kernels::cuda
