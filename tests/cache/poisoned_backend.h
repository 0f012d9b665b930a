// A backend that poisons memory that must not be read: released memory, and the slots of dense pages that hold no
// token.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/forwarding_kv_backend.h"
#include "tests/kernels/attention_sequence.h"

namespace smartkv {

class PoisonedBackend : public kernels::ForwardingKvBackend {
 public:
  explicit PoisonedBackend(std::shared_ptr<kernels::KvBackend> to) : ForwardingKvBackend(to), backend_(std::move(to)) {}
  ~PoisonedBackend() override {
    for (const auto& [memory, bytes] : released_) backend_->release(memory, bytes);
  }

  // Keeps released memory to the end instead of reusing it, so that a late reader sees the poison.
  void release(std::byte* memory, size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);  // layers are compressed in parallel
    const std::vector<uint32_t> poison(bytes / sizeof(uint32_t), next_poison());
    backend_->upload(poison.data(), bytes, memory);
    released_.emplace_back(memory, bytes);
  }

  void attention(const kernels::AttentionShape& shape, std::span<const kernels::AttentionTask> tasks) override {
    backend_->apply_writes();
    for (const kernels::AttentionTask& task : tasks) {
      for (const kernels::KvSegment& segment : task.segments) poison(shape, segment);
    }
    backend_->attention(shape, tasks);
  }

 private:
  uint32_t next_poison() { return kernels::kPoisons[n_++ % std::size(kernels::kPoisons)]; }

  void poison(const kernels::AttentionShape& shape, const kernels::KvSegment& segment) {
    if (segment.format != kernels::KvSegment::Format::kDense || segment.tokens == kernels::kPageTokens) return;
    const int64_t half = shape.head_dim * kernels::kPageTokens * (shape.type == kernels::KvType::kBf16 ? 2 : 4);
    std::vector<std::byte> k(static_cast<size_t>(half)), v(k.size());
    for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
      if (!segment.is_of(head)) continue;
      auto* const of_k = static_cast<std::byte*>(const_cast<void*>(segment.k)) + head * segment.head_stride;
      auto* const of_v = static_cast<std::byte*>(const_cast<void*>(segment.v)) + head * segment.head_stride;
      backend_->download(of_k, k.size(), k.data());
      backend_->download(of_v, v.size(), v.data());
      kernels::poison_slots(shape.type, shape.head_dim, segment.tokens, next_poison(), k.data(), v.data());
      backend_->upload(k.data(), k.size(), of_k);
      backend_->upload(v.data(), v.size(), of_v);
    }
  }

  std::shared_ptr<kernels::KvBackend> backend_;
  std::vector<std::pair<std::byte*, size_t>> released_;
  size_t n_ = 0;
  std::mutex mutex_;
};

}  // namespace smartkv
