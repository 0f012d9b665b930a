// PillarAttn (SparseSpec, Zhao et al. 2025): a model that drafts for itself attends to the tokens that its last verification
// attended to most, in each layer and KV head, and to what came after them.
//
// The draft's cache keeps none of the sequence: the first query of a pass, whose token is known to stand, shows where it
// attends, and the rows of the best tokens are copied out of the target's cache, as are those of the pass itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/forwarding_cache.h"
#include "cache/policy.h"

namespace smartkv {

constexpr std::string_view kPillarAttn = "pillar_attn";
bool is_pillar(const nlohmann::json& kv_cache);  // {"policy": "pillar_attn", ...}, or the name alone

struct PillarOptions {
  int64_t tokens = 1024;  // that a KV head of the draft reads of those before the verification
  int64_t drafted = 4;    // in a round at most
};

class PillarCache final : public SequenceCache {
 public:
  static constexpr int64_t kRecent = 64;  // of `tokens`, the last before the verification: read in any case

  PillarCache(const PolicyContext& context, const PillarOptions& options, int64_t prompt_tokens);
  // Upper bound while it grows to n tokens.
  static int64_t max_bytes(const CacheShape& shape, const PillarOptions& options, int64_t n_tokens);

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void advance(int64_t n) override { tokens_ += n; }
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  int64_t growth(int64_t n) const override;
  std::vector<int64_t> represented(int64_t layer, int64_t head) const override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }
  CacheStats stats() const override;

  // Of the target's next n tokens, the one whose query chooses: the first that is verified, or the last of others.
  TokenRange chooses(int64_t n) const;
  // The target's pass over n tokens from tokens() on has come to a layer; `target`: its view after them, every token dense.
  // Throws CacheError where it is not.
  void choose(int64_t layer, const Probe& probe, int64_t n, std::span<const kernels::KvSegment> target);

 private:
  PillarCache(const PillarCache& other);
  const CacheShape& shape() const { return context_->shape; }
  int64_t rows(int64_t n_tokens) const { return n_chosen_ + n_tokens - first_; }  // that stand for so many tokens

  const PolicyContext* context_;
  PillarOptions options_;
  int64_t prompt_tokens_;
  int64_t tokens_ = 0, committed_ = 0;
  int64_t n_chosen_ = 0;  // rows of chosen tokens, each KV head's its own, in order of position
  int64_t first_ = 0;     // the token after them
  std::vector<DenseLayer> rows_;               // by layer: of the chosen, then of the tokens from first_ on
  std::vector<std::vector<int32_t>> chosen_;   // [n_layers][n_kv_heads, n_chosen]: positions
  PoolCharge state_;
};

// The target's passes, which the draft's cache watches. Both outlive it.
class PillarMirror final : public ForwardingCache {
 public:
  PillarMirror(SequenceCache* target, PillarCache* draft);

  int64_t committed() const override { return std::max(target_->committed(), draft_->committed()); }
  void reserve(int64_t n) override;
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  TokenRange probes(int64_t n) const override { return cover(target_->probes(n), draft_->chooses(n)); }
  void observe(int64_t layer, const Probe& probe) override;
  int64_t growth(int64_t n) const override { return target_->growth(n) + draft_->growth(n); }
  std::unique_ptr<SequenceCache> fork() const override { return target_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override { return target_->resume(prompt_tokens); }

 private:
  SequenceCache* target_;
  PillarCache* draft_;
  int64_t n_ = 0;  // tokens of the pass
  std::vector<kernels::KvSegment> view_;
};

// The policy of a draft's cache, {"policy": "pillar_attn", "tokens": N} or its name; `drafted`: tokens of a round at most. Throws
// CacheError.
std::unique_ptr<KvCachePolicy> make_pillar_policy(const PolicyContext& context, const nlohmann::json& kv_cache, int64_t drafted);

}  // namespace smartkv
