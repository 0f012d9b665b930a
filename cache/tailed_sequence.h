// What the sequences of all policies share: the dense tail that new tokens enter, the counts, and their checks.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/sequence_cache.h"

namespace smartkv {

// A policy overrides compact(), view() and stats(); its own segments stand before the tail.
class TailedSequence : public SequenceCache {
 public:
  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void advance(int64_t n) override { tokens_ += n; }
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  CacheStats stats() const override;  // of the tail alone, and full_bytes

 protected:
  explicit TailedSequence(const PolicyContext& context)
      : context_(&context), tail_(static_cast<size_t>(context.shape.n_layers), DenseLayer(context.pool)) {}

  // Called by commit() at next_boundary(): moves tokens out of the tail.
  virtual void compact() {}

  const PolicyContext& context() const { return *context_; }
  const CacheShape& shape() const { return context_->shape; }
  int64_t tail_first() const { return tail_[0].first(); }
  int64_t tail_tokens() const { return tokens_ - tail_first(); }
  DenseLayer& tail(int64_t layer) { return tail_[static_cast<size_t>(layer)]; }
  const DenseLayer& tail(int64_t layer) const { return tail_[static_cast<size_t>(layer)]; }
  void drop_tail_before(int64_t token);

 private:
  const PolicyContext* context_;
  std::vector<DenseLayer> tail_;
  int64_t tokens_ = 0;
  int64_t committed_ = 0;
};

// Bytes of the pages that hold n dense tokens over all layers.
int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens);

}  // namespace smartkv
