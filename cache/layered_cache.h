// Caches of models with two kinds of layers. The layers with full attention have the cache of a policy. The layers with
// a sliding window have a dense tail that returns its pages as they leave the window, whatever the policy is.
//
// A cache numbers the layers with full attention first, from 0 to CacheShape::n_layers - 1, and those with a window
// after them (ModelConfig::cache_order()). So a policy never learns about windows.
#pragma once

#include <memory>

#include "cache/policy.h"

namespace smartkv {

// The bundle of both kinds of cache of one sequence.
class LayeredCache final : public SequenceCache {
 public:
  // full: the policy's cache of n_full layers. windows: the cache of all other layers. Both hold equally many tokens.
  LayeredCache(int64_t n_full, std::unique_ptr<SequenceCache> full, std::unique_ptr<SequenceCache> windows);

  int64_t tokens() const override { return full_->tokens(); }
  // Only the policy's cache observes probe queries, so it has at least as many committed tokens.
  int64_t committed() const override { return full_->committed(); }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  bool wants_hidden() const override { return full_->wants_hidden(); }
  // REQUIRES: the layer has full attention.
  void show_hidden(int64_t layer, const void* rows, int64_t n) override { full_->show_hidden(layer, rows, n); }
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override;
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  bool wants_check() const override { return full_->wants_check(); }
  void follow(const LogitCheck& check) override { full_->follow(check); }
  LogitCheck judge(std::span<const float> exact, std::span<const float> own) override {
    return full_->judge(exact, own);
  }
  int64_t next_boundary() const override;
  TokenRange probes(int64_t n) const override { return full_->probes(n); }
  // REQUIRES: the layer has full attention.
  void observe(int64_t layer, const Probe& probe) override { full_->observe(layer, probe); }
  int64_t max_growth(int64_t n) const override;
  std::vector<int64_t> positions(int64_t layer, int64_t head) const override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  bool save(StateWriter* out) const override;
  // Counts the policy's tokens and the bytes of both caches.
  CacheStats stats() const override;
  int64_t stable_bytes() const override { return full_->stable_bytes() + windows_->stable_bytes(); }
  std::map<std::string, double> details() const override { return full_->details(); }

  const SequenceCache& full() const { return *full_; }
  const SequenceCache& windows() const { return *windows_; }

 private:
  int64_t n_full_;
  std::unique_ptr<SequenceCache> full_, windows_;
};

// Makes the policy of the layers that have context.window.
std::unique_ptr<KvCachePolicy> make_window_policy(const PolicyContext& context);

// Adds the windows of context.window to the caches of a policy for the layers with full attention. Returns the policy
// itself if no layer has a window. If all layers have one, the caches hold windows only, and the policy gives nothing
// but its name and parameters.
std::unique_ptr<KvCachePolicy> add_windows(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy);

}  // namespace smartkv
