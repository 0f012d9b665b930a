// Fills two caches of one sequence in the same pass. The pass reads the target's cache. The draft's cache receives the
// same exact K and V and stores them under its own policy. A model that drafts for itself therefore never computes a
// token twice.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "kernels/kv_backend.h"

namespace smartkv {

// Returns how many tokens the draft's cache can take before its next compaction boundary. Throws CacheError if there
// are none.
int64_t room_to_boundary(const SequenceCache& draft);

// The target's cache, which forwards every write to the draft's cache.
//
// A pass may reach beyond the draft's next compaction boundary. Then this class keeps the rows of the pass and writes
// them to the draft's cache in commit(), boundary by boundary. REQUIRES: such a commit covers all tokens.
//
// stats(), fork() and resume() are those of the target's cache; the owner asks the draft's cache itself.
class MirroredCache final : public ForwardingCache {
 public:
  // `context` is that of the draft's policy; its backend holds the draft's pages. Both caches outlive this.
  MirroredCache(const PolicyContext& context, SequenceCache* target, SequenceCache* draft)
      : ForwardingCache({target}),
        backend_(context.pool->backend()),
        width_(context.shape.n_kv_heads * context.shape.head_dim),
        kept_(static_cast<size_t>(context.n_layers())),
        target_(target),
        draft_(draft) {}

  int64_t committed() const override { return std::max(target_->committed(), draft_->committed()); }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  // Bounds the growth of both caches. Rows kept for the draft do not count: they are scratch memory of the pass.
  int64_t max_growth(int64_t n) const override {
    return target_->max_growth(n) + draft_->max_growth(tokens() + n - draft_->tokens());
  }
  std::unique_ptr<SequenceCache> fork() const override { return target_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override { return target_->resume(prompt_tokens); }

 private:
  void write_kept();

  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t width_;       // floats of K, and of V, per token and layer
  bool keeps_ = false;  // this pass's rows go to kept_ instead of the draft's cache
  // Per layer f32 [n, 2, width]: K and V of the tokens from draft_->tokens() on. It is memory of the backend, because
  // rows may lie in device memory.
  std::vector<std::unique_ptr<kernels::PageMemory>> kept_;
  SequenceCache* target_;
  SequenceCache* draft_;
};

}  // namespace smartkv
