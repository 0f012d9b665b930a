// Jobs that tell the host about pages of a CUDA device: their values, ranges and squares, and products of queries with
// keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/wave_jobs.h"
#include "kernels/page_ops.h"

namespace smartkv::kernels::cuda {

class ReadJobs final : public WaveJobs {
 public:
  void read(int64_t head_dim, std::span<const PageRead> pages, Staging& staging, ResultSpace& results);
  void page_stats(int64_t head_dim, std::span<const PageStats> pages, ResultSpace& results);
  void multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, Staging& staging, ResultSpace& results);
  void clear() override;
  // Throws std::invalid_argument for a job that does not fit, and std::runtime_error on CUDA errors.
  void run(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream) override;

 private:
  struct QueuedRead {
    PageRead job;
    size_t order, k, v;
  };
  struct QueuedStats {
    PageStats job;
    size_t k_range, v_range, k_squares, v_squares;
  };
  struct QueuedProducts {
    KeyProducts job;
    KvSegment residual;
    size_t order, residual_order, q, out;
  };
  void run_reads(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream);
  void run_stats(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream);
  void run_products(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream);

  std::vector<QueuedRead> reads_;
  std::vector<QueuedStats> stats_;
  std::vector<QueuedProducts> products_;
  std::vector<PageRead> placed_;  // Reused by each run().
};

}  // namespace smartkv::kernels::cuda
