// Two caches of one sequence, filled by the same pass: the target's, which the pass reads, and the draft's, which gets
// the same exact K and V to hold in its own way. So a model that drafts for itself never computes a token twice.
#pragma once

#include <algorithm>

#include "cache/sequence_cache.h"

namespace smartkv {

// Both outlive it and stay at one token count. stats() and fork() are the parts' own business.
class MirroredCache final : public SequenceCache {
 public:
  MirroredCache(SequenceCache* target, SequenceCache* draft) : target_(target), draft_(draft) {}

  int64_t tokens() const override { return target_->tokens(); }
  int64_t committed() const override { return std::max(target_->committed(), draft_->committed()); }
  void reserve(int64_t n) override {
    target_->reserve(n);
    draft_->reserve(n);
  }
  void write(int64_t layer, const KvRows& rows) override {
    target_->write(layer, rows);
    draft_->write(layer, rows);
  }
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override {
    target_->view(layer, n_new, segments);
  }
  void advance(int64_t n) override {
    target_->advance(n);
    draft_->advance(n);
  }
  void truncate(int64_t n_tokens) override {
    target_->truncate(n_tokens);
    draft_->truncate(n_tokens);
  }
  void commit(int64_t n_tokens) override {
    target_->commit(n_tokens);
    draft_->commit(n_tokens);
  }
  int64_t next_boundary() const override { return std::min(target_->next_boundary(), draft_->next_boundary()); }
  TokenRange probes(int64_t n) const override { return target_->probes(n); }
  void observe(int64_t layer, const Probe& probe) override { target_->observe(layer, probe); }
  std::unique_ptr<SequenceCache> fork() const override { return target_->fork(); }
  CacheStats stats() const override { return target_->stats(); }

 private:
  SequenceCache* target_;
  SequenceCache* draft_;
};

}  // namespace smartkv
