// Rows of K and V, f32, in a backend's memory, allocated for the duration of a boundary. They hold tokens on their way
// from one slot to another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kv_backend.h"

namespace smartkv {

class ScratchRows {
 public:
  ScratchRows(std::shared_ptr<kernels::KvBackend> backend, int64_t head_dim)
      : backend_(std::move(backend)), head_dim_(head_dim) {}

  // Returns another row. Its contents are undefined.
  kernels::TokenPlace add() {
    const int64_t row = n_ % kRows;
    if (row == 0) {
      const auto bytes = static_cast<size_t>(kRows * 2 * head_dim_) * sizeof(float);
      chunks_.push_back(std::make_unique<kernels::PageMemory>(backend_, bytes));
    }
    ++n_;
    auto* const k = reinterpret_cast<float*>(chunks_.back()->data()) + row * 2 * head_dim_;
    return {k, k + head_dim_, kernels::TokenPlace::kRow};
  }

 private:
  static constexpr int64_t kRows = 32;  // Rows of a chunk.

  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t head_dim_, n_ = 0;
  std::vector<std::unique_ptr<kernels::PageMemory>> chunks_;
};

}  // namespace smartkv
