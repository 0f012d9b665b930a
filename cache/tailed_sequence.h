// What the sequences of all policies share: the dense tail that new tokens enter, the counts, and their checks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/boundaries.h"
#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/sequence_cache.h"

namespace smartkv {

// A policy overrides compact(), view() and stats(); its own segments stand before the tail. Copies share pages.
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
  int64_t next_boundary() const override { return boundary_; }
  int64_t growth(int64_t n) const override;
  std::vector<int64_t> represented(int64_t layer, int64_t head) const override;  // every token, in order
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  CacheStats stats() const override;  // of the tail and the state, and full_bytes

 protected:
  TailedSequence(const PolicyContext& context, const Boundaries& boundaries)
      : state_(context.pool),
        context_(&context),
        boundaries_(boundaries),
        boundary_(boundaries.after(0)),
        tail_(static_cast<size_t>(context.shape.n_layers), DenseLayer(context.pool)) {}
  TailedSequence(const TailedSequence& other);

  // Called by commit() at next_boundary(): moves the tokens before boundaries().leaving(tokens()) out of the tail.
  virtual void compact() {}
  // What compact() may add to bytes_in_use(), at any moment, at the boundaries in (tokens(), end], and the state on the way.
  virtual int64_t compaction_growth(int64_t end) const { (void)end; return 0; }
  // Queries before each boundary that observe() is shown.
  virtual int64_t n_probes() const { return 0; }
  // Whether pages may be somebody else's, too; false only if they are not.
  bool may_share() const { return may_share_; }

  // task(i) for i in [0, n), on the context's threads if there are any. The first exception is thrown here when all have
  // ended.
  void for_each(int64_t n, const std::function<void(int64_t)>& task) const;

  const PolicyContext& context() const { return *context_; }
  const CacheShape& shape() const { return context_->shape; }
  const Boundaries& boundaries() const { return boundaries_; }
  int64_t tail_first() const { return tail_[0].first(); }
  int64_t tail_tokens() const { return tokens_ - tail_first(); }
  DenseLayer& tail(int64_t layer) { return tail_[static_cast<size_t>(layer)]; }
  const DenseLayer& tail(int64_t layer) const { return tail_[static_cast<size_t>(layer)]; }
  void drop_tail_before(int64_t token);

  PoolCharge state_;  // the policy's own bytes besides pages; the policy keeps it up to date

 private:
  const PolicyContext* context_;
  Boundaries boundaries_;
  int64_t boundary_;
  std::vector<DenseLayer> tail_;
  int64_t tokens_ = 0;
  int64_t committed_ = 0;
  mutable bool may_share_ = false;
};

// Bytes of the pages that hold n dense tokens over all layers.
int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens);

}  // namespace smartkv
