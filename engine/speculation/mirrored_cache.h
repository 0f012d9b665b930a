// Two caches of one sequence, filled by the same pass: the target's, which the pass reads, and the draft's, which gets
// the same exact K and V to hold in its own way. So a model that drafts for itself never computes a token twice.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cache/forwarding_cache.h"
#include "kernels/kv_backend.h"

namespace smartkv {

// Tokens that the draft's cache takes before its next boundary. Throws CacheError if there are none.
int64_t room_to_boundary(const SequenceCache& draft);

// backend: of the draft's pages. Both caches outlive it. A pass may go beyond the draft's boundary: then its rows are kept, and the draft's cache gets them
// piece by piece when they are committed, all of them at once. stats(), fork() and resume() are the parts' own business.
class MirroredCache final : public ForwardingCache {
 public:
  MirroredCache(const CacheShape& shape, std::shared_ptr<kernels::KvBackend> backend, SequenceCache* target, SequenceCache* draft)
      : ForwardingCache({target}),
        backend_(std::move(backend)),
        width_(shape.n_kv_heads * shape.head_dim),
        kept_(static_cast<size_t>(shape.n_layers)),
        target_(target),
        draft_(draft) {}

  int64_t committed() const override { return std::max(target_->committed(), draft_->committed()); }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  // Of both; rows that are kept for the draft belong to the pass.
  int64_t growth(int64_t n) const override { return target_->growth(n) + draft_->growth(tokens() + n - draft_->tokens()); }
  std::unique_ptr<SequenceCache> fork() const override { return target_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override { return target_->resume(prompt_tokens); }

 private:
  void write_kept();

  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t width_;                         // values of K, and of V, of a token in a layer
  bool keeps_ = false;                    // this pass's rows, instead of passing them on
  // [n_layers] of f32 [n, 2, width]: K and V of the tokens from draft_->tokens() on. The backend's memory, as rows may be.
  std::vector<std::unique_ptr<kernels::PageMemory>> kept_;
  SequenceCache* target_;
  SequenceCache* draft_;
};

}  // namespace smartkv
