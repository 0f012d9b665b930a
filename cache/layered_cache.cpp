#include "cache/layered_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/state_io.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

class LayeredPolicy final : public KvCachePolicy {
 public:
  LayeredPolicy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy)
      : n_full_(context.shape.n_layers), policy_(std::move(policy)), windows_(make_window_policy(context)) {
    set_stand_in(policy_->stand_in());
    set_spec(policy_->spec(), policy_->promise());
  }

  std::string_view name() const override { return policy_->name(); }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    const int64_t windows = windows_->max_bytes(prompt_tokens, n_tokens);
    return n_full_ == 0 ? windows : policy_->max_bytes(prompt_tokens, n_tokens) + windows;
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    auto windows = windows_->new_sequence(prompt_tokens);
    if (n_full_ == 0) return windows;
    return std::make_unique<LayeredCache>(n_full_, policy_->new_sequence(prompt_tokens), std::move(windows));
  }
  std::string across_heads() const override { return n_full_ == 0 ? std::string() : policy_->across_heads(); }
  bool exchanges() const override { return n_full_ > 0 && policy_->exchanges(); }
  std::unique_ptr<SequenceCache> load(StateReader* in) const override {
    if (n_full_ == 0) return windows_->load(in);
    auto full = policy_->load(in);
    auto windows = windows_->load(in);
    in->expect(windows->tokens() == full->tokens() && windows->committed() <= full->committed(),
               "windows of the tokens that the other layers hold");
    return std::make_unique<LayeredCache>(n_full_, std::move(full), std::move(windows));
  }

 private:
  int64_t n_full_;
  std::unique_ptr<KvCachePolicy> policy_, windows_;
};

}  // namespace

LayeredCache::LayeredCache(int64_t n_full, std::unique_ptr<SequenceCache> full, std::unique_ptr<SequenceCache> windows)
    : n_full_(n_full), full_(std::move(full)), windows_(std::move(windows)) {}

void LayeredCache::reserve(int64_t n) {
  full_->reserve(n);
  windows_->reserve(n);
}

void LayeredCache::write(int64_t layer, const KvRows& rows) {
  if (layer < n_full_) return full_->write(layer, rows);
  windows_->write(layer - n_full_, rows);
}

void LayeredCache::view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const {
  if (layer < n_full_) return full_->view(layer, n_new, segments);
  windows_->view(layer - n_full_, n_new, segments);
}

void LayeredCache::advance(int64_t n) {
  full_->advance(n);
  windows_->advance(n);
}

void LayeredCache::truncate(int64_t n_tokens) {
  full_->truncate(n_tokens);  // throws first, because it has at least as many committed tokens
  windows_->truncate(n_tokens);
}

void LayeredCache::commit(int64_t n_tokens) {
  full_->commit(n_tokens);
  windows_->commit(n_tokens);
}

int64_t LayeredCache::next_boundary() const { return std::min(full_->next_boundary(), windows_->next_boundary()); }

int64_t LayeredCache::max_growth(int64_t n) const { return full_->max_growth(n) + windows_->max_growth(n); }

std::vector<int64_t> LayeredCache::positions(int64_t layer, int64_t head) const {
  return layer < n_full_ ? full_->positions(layer, head) : windows_->positions(layer - n_full_, head);
}

std::unique_ptr<SequenceCache> LayeredCache::fork() const {
  return std::make_unique<LayeredCache>(n_full_, full_->fork(), windows_->fork());
}

std::unique_ptr<SequenceCache> LayeredCache::resume(int64_t prompt_tokens) const {
  auto full = full_->resume(prompt_tokens);
  if (full == nullptr) return nullptr;
  auto windows = windows_->resume(prompt_tokens);
  if (windows == nullptr) return nullptr;
  return std::make_unique<LayeredCache>(n_full_, std::move(full), std::move(windows));
}

bool LayeredCache::save(StateWriter* out) const { return full_->save(out) && windows_->save(out); }

CacheStats LayeredCache::stats() const {
  CacheStats stats = full_->stats();
  stats.add_windows(windows_->stats());
  return stats;
}

std::unique_ptr<KvCachePolicy> make_window_policy(const PolicyContext& context) {
  PolicyContext of_windows = context;
  of_windows.shape.n_layers = context.window.n_layers;
  return std::make_unique<StagedPolicy>("window", of_windows, Boundaries{context.window.tokens, kPromptStride, 0},
                                        std::vector<std::unique_ptr<StoreFactory>>());
}

std::unique_ptr<KvCachePolicy> add_windows(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy) {
  if (context.window.n_layers == 0) return policy;
  return std::make_unique<LayeredPolicy>(context, std::move(policy));
}

}  // namespace smartkv
