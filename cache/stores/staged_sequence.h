// The sequence cache of all policies. New tokens enter a dense tail; at compaction boundaries the oldest are evicted
// from it into a chain of stores.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/boundaries.h"
#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/sequence_cache.h"
#include "cache/stores/tail_scores.h"
#include "cache/stores/token_store.h"

namespace smartkv {

// The view has the stores' segments first, in the order of the chain, then the tail. Forks share pages.
class StagedSequence final : public SequenceCache {
 public:
  StagedSequence(const PolicyContext& context, const Boundaries& boundaries,
                 std::vector<std::unique_ptr<TokenStore>> stores);

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  bool wants_hidden() const override { return scores_.scorer() != nullptr; }
  void show_hidden(int64_t layer, const void* rows, int64_t n) override { scores_.score(layer, tokens_, rows, n); }
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  int64_t next_boundary() const override { return boundary_; }
  bool wants_check() const override;
  void follow(const LogitCheck& check) override;
  LogitCheck judge(std::span<const float> exact, std::span<const float> own) override;
  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  int64_t max_growth(int64_t n) const override;
  std::vector<int64_t> positions(int64_t layer, int64_t head) const override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  bool save(StateWriter* out) const override;
  // Reads what save() wrote. REQUIRES: the sequence is new; its prompt may be any. Throws CacheError.
  void load(StateReader* in);
  CacheStats stats() const override;
  int64_t stable_bytes() const override;
  std::map<std::string, double> details() const override;

  // Returns the bytes that it will hold once it has grown to n_tokens tokens. Where contents decide, this is an upper
  // bound.
  int64_t bytes_at(int64_t n_tokens) const;
  // Store `i` of the chain, for inspection and tests.
  const TokenStore& store(size_t i) const { return *stores_[i]; }

 private:
  StagedSequence(const StagedSequence& other);

  StageView stage_view() const {
    return {tail_, tail_[0].first(), tokens_, boundary_, boundaries_, may_share_, &scores_};
  }
  // Passes the tokens before the boundary that is committed through the stores.
  void compact();
  // Lets stores work ahead while the prompt is computed.
  void see_prompt();
  // The most probes that any store wants before a boundary.
  int64_t n_probes() const;
  const CacheShape& shape() const { return context_.shape; }
  DenseLayer& tail(int64_t layer) { return tail_[static_cast<size_t>(layer)]; }
  const DenseLayer& tail(int64_t layer) const { return tail_[static_cast<size_t>(layer)]; }

  PolicyContext context_;
  Boundaries boundaries_;
  int64_t boundary_;
  std::vector<DenseLayer> tail_;
  std::vector<std::unique_ptr<TokenStore>> stores_;
  TailScores scores_;
  int64_t tokens_ = 0;
  int64_t committed_ = 0;
  // Some page may have another holder, too. False only if none has.
  mutable bool may_share_ = false;
};

}  // namespace smartkv
