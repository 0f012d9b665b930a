#include "cache/shadow/shadow_policy.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "cache/policies/full/full.h"
#include "cache/shadow/shadow_sequence.h"

namespace smartkv {
namespace {

class ShadowPolicy final : public KvCachePolicy {
 public:
  ShadowPolicy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy, double share, DriftWatch watch)
      : context_(context),
        policy_(std::move(policy)),
        full_(make_full_policy(context, nlohmann::json::object())),
        stride_(std::llround(1 / share)),
        watch_(std::make_shared<const DriftWatch>(std::move(watch))) {
    set_stand_in(policy_->stand_in());
  }

  std::string_view name() const override { return policy_->name(); }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    // A sequence holds its cache and the safer one while it makes that.
    int64_t own = policy_->max_bytes(prompt_tokens, n_tokens), most = own;
    for (const auto& safer : watch_->safer) {
      const int64_t next = safer->max_bytes(prompt_tokens, n_tokens);
      most = std::max(most, own + next);
      own = next;
    }
    return most + full_->max_bytes(prompt_tokens, n_tokens) + ShadowSequence::state_bytes(context_.shape);
  }
  std::string across_heads() const override { return "compares attention over all KV heads, query by query (shadow)"; }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<ShadowSequence>(context_, stride_, prompt_tokens, policy_->new_sequence(prompt_tokens),
                                            full_->new_sequence(prompt_tokens), watch_);
  }

 private:
  PolicyContext context_;
  std::unique_ptr<KvCachePolicy> policy_, full_;
  int64_t stride_;
  std::shared_ptr<const DriftWatch> watch_;
};

}  // namespace

std::vector<CacheMetric> shadow_metrics() {
  const std::vector<double> errors = {0.003, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1};
  return {
      {"drift_l2_mean", "kv_drift_l2",
       "Mean relative L2 error of attention over the compressed cache, per sequence in shadow mode.", errors},
      {"drift_l2_max", "kv_drift_l2_max",
       "Largest relative L2 error of attention over the compressed cache, per sequence in shadow mode.", errors},
      {"drift_jaccard_mean",
       "kv_drift_jaccard",
       "Mean Jaccard index of the most attended tokens of the full and the compressed cache, per sequence in "
       "shadow mode.",
       {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1}},
      {"drift_samples", "kv_drift_samples_total", "Queries for which shadow mode computed attention over both caches."},
      {"promise_judged", "kv_promise_judged_total", "Sequences in shadow mode whose promise was judged."},
      {"promise_broken", "kv_promise_broken_total",
       "Sequences in shadow mode whose drift shows that they broke their promise."},
      {"promise_steps", "kv_promise_steps_total",
       "Times that a sequence went on with a safer policy, because it had broken its promise."}};
}

std::unique_ptr<KvCachePolicy> make_shadow_policy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy,
                                                  double share, DriftWatch watch) {
  return std::make_unique<ShadowPolicy>(context, std::move(policy), share, std::move(watch));
}

}  // namespace smartkv
