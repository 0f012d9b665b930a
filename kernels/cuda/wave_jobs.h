// Jobs of a wave of a PageQueue that have results for the host: those of page_stats.h, and those that policies add in
// their folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/uploads.h"

namespace smartkv::kernels::cuda {

struct PageWorkspace;

// Lays out the results of all waves in one region of memory, and knows where they go on the host.
class ResultSpace {
 public:
  void clear() {
    results_.clear();
    bytes_ = 0;
  }
  size_t bytes() const { return bytes_; }
  // Reserves room for rows of `row_bytes` bytes, and returns its offset. The rows go to rows `stride` bytes apart from
  // `to` on. Returns kNone if `to` is null.
  size_t add(void* to, size_t row_bytes, size_t rows = 1, size_t stride = 0) {
    if (to == nullptr) return kNone;
    const size_t at = bytes_;
    results_.push_back({static_cast<std::byte*>(to), at, row_bytes, rows, stride});
    bytes_ += (row_bytes * rows + 7) / 8 * 8;
    return at;
  }
  // Copies all results to their places on the host. from: offset 0, in host memory.
  void hand_out(const std::byte* from) const {
    for (const Result& result : results_) {
      for (size_t row = 0; row < result.rows; ++row) {
        std::memcpy(result.to + row * result.stride, from + result.at + row * result.row_bytes, result.row_bytes);
      }
    }
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  struct Result {
    std::byte* to;
    size_t at, row_bytes, rows, stride;
  };
  std::vector<Result> results_;
  size_t bytes_ = 0;
};

// Stages data that several jobs of a call share once.
class CallStaging {
 public:
  explicit CallStaging(Staging& staging) : staging_(staging) {}
  size_t add(const void* from, size_t bytes) {  // Returns kNone if `from` is null.
    if (from == nullptr) return ResultSpace::kNone;
    for (auto known = known_.rbegin(); known != known_.rend(); ++known) {
      if (known->from == from && known->bytes == bytes) return known->at;
    }
    known_.push_back({from, bytes, staging_.add(from, bytes)});
    return known_.back().at;
  }

 private:
  struct Known {
    const void* from;
    size_t bytes, at;
  };
  Staging& staging_;
  std::vector<Known> known_;
};

// Where offset 0 of the staging and of the results is on the device.
struct WaveMemory {
  const std::byte* staged;
  std::byte* results;

  // Return the address of an offset; null for kNone.
  template <typename T>
  const T* input(size_t offset) const {
    return offset == ResultSpace::kNone ? nullptr : reinterpret_cast<const T*>(staged + offset);
  }
  template <typename T>
  T* output(size_t offset) const {
    return offset == ResultSpace::kNone ? nullptr : reinterpret_cast<T*>(results + offset);
  }
};

// The jobs of one kind in one wave. Its functions that add jobs copy what these point to in host memory. The pages that
// they read stay until run().
class WaveJobs {
 public:
  virtual ~WaveJobs() = default;
  virtual void clear() = 0;
  // Launches all jobs on `stream`.
  virtual void run(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, CUstream_st* stream) = 0;
};

}  // namespace smartkv::kernels::cuda
