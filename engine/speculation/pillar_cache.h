// PillarAttn (SparseSpec, Zhao et al. 2025). In each layer and KV head, a model that drafts for itself attends to the
// tokens that its last verification attended to most, and to all tokens after them.
//
// The draft's cache holds only rows copied from the target's cache. The first query of a verification belongs to a
// token that is already accepted, and its attention is observed. The rows of the tokens with the most attention are
// copied, and the rows of the verification itself. In layers with a sliding window the draft reads a fork of what the
// target has.
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
// Returns whether `kv_cache` is {"policy": "pillar_attn", ...} or the name alone.
bool is_pillar(const nlohmann::json& kv_cache);

struct PillarOptions {
  int64_t tokens = 1024;  // tokens before the verification that each KV head of the draft reads
  int64_t drafted = 4;    // most tokens drafted in a round
};

// The draft's cache. In the layers with full attention it has rows for n_chosen_ chosen tokens, which differ by layer
// and KV head, then for every token from first_ on.
class PillarCache final : public SequenceCache {
 public:
  // The last tokens before the verification. They are always chosen and count towards PillarOptions::tokens.
  static constexpr int64_t kRecent = 64;

  // `context` outlives this.
  PillarCache(const PolicyContext& context, const PillarOptions& options, int64_t prompt_tokens);
  // Returns an upper bound of the bytes held at any moment while the cache grows to n_tokens tokens.
  static int64_t max_bytes(const CacheShape& shape, const PillarOptions& options, int64_t n_tokens);

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void advance(int64_t n) override;
  int64_t next_boundary() const override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  int64_t max_growth(int64_t n) const override;
  std::vector<int64_t> positions(int64_t layer, int64_t head) const override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }
  CacheStats stats() const override;

  // Follows a pass of the target over the next n tokens. windows: the target's cache of the layers with a window after
  // that pass; null if there are none.
  void follow_target(int64_t n, const SequenceCache* windows);
  // Returns the position among the target's next n tokens whose query chooses the rows. In a verification it is the
  // first of the n tokens, otherwise the last. The range is empty if the pass ends inside the prompt.
  TokenRange chooses(int64_t n) const;
  // Chooses and copies the rows of `layer` while the target's pass computes n tokens from tokens() on. `probe` belongs
  // to the position of chooses(n), and `target` is the target's view after the n tokens. REQUIRES: layers come in
  // order. Throws CacheError unless the target holds every token dense.
  void choose(int64_t layer, const Probe& probe, int64_t n, std::span<const kernels::KvSegment> target);

 private:
  PillarCache(const PillarCache& other);
  void check_uncommitted(const std::string& call, int64_t n_tokens) const;  // throws CacheError
  const CacheShape& shape() const { return context_->shape; }
  // Returns how many rows represent the first n_tokens tokens of the sequence.
  int64_t rows(int64_t n_tokens) const { return n_chosen_ + n_tokens - first_; }

  const PolicyContext* context_;
  PillarOptions options_;
  int64_t prompt_tokens_;
  int64_t tokens_ = 0, committed_ = 0;
  int64_t n_chosen_ = 0;  // rows of chosen tokens before first_, in order of position, per KV head
  int64_t first_ = 0;     // first token after the chosen ones; from it on every KV head has a row of every token
  std::vector<DenseLayer> rows_;              // by layer: rows of the chosen tokens, then of the tokens from first_ on
  std::vector<std::vector<int32_t>> chosen_;  // [n_layers][n_kv_heads, n_chosen]: positions of the chosen tokens
  PoolCharge state_;                          // bytes of chosen_
  // Of the layers with a window, this cache's own; null if there are none.
  std::shared_ptr<SequenceCache> windows_;
};

// The target's cache, which shows the draft's PillarCache the passes of the target. Only choose() writes to the latter.
class PillarMirror final : public ForwardingCache {
 public:
  // Both caches outlive this.
  PillarMirror(SequenceCache* target, PillarCache* draft);

  int64_t committed() const override { return std::max(target_->committed(), draft_->committed()); }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override { target_->write(layer, rows); }
  void advance(int64_t n) override;
  TokenRange probes(int64_t n) const override { return cover(target_->probes(n), draft_->chooses(n)); }
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override { return target_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override { return target_->resume(prompt_tokens); }

 private:
  // Makes the draft follow a pass of n tokens.
  void show(int64_t n);

  SequenceCache* target_;
  PillarCache* draft_;
  int64_t n_ = 0;  // tokens of the current pass
  std::vector<kernels::KvSegment> view_;
};

// Makes the policy from `kv_cache`, which is {"policy": "pillar_attn", "tokens": N} or the name alone. `drafted` is the
// most tokens drafted in a round. `context` outlives the policy. Throws CacheError on bad parameters, and on models in
// which no layer has full attention.
std::unique_ptr<KvCachePolicy> make_pillar_policy(const PolicyContext& context, const nlohmann::json& kv_cache,
                                                  int64_t drafted);

}  // namespace smartkv
