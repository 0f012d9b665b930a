// A tiny random model, a text for it, and a cache that returns NaN.
#pragma once

#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "lab/evaluation/evaluation.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {

// The full cache, except that the values of every token from `broken_from` on are NaN.
class BrokenSequence final : public ForwardingCache {
 public:
  BrokenSequence(std::unique_ptr<SequenceCache> full, int64_t broken_from)
      : ForwardingCache({full.get()}), full_(std::move(full)), broken_from_(broken_from) {}
  void write(int64_t layer, const KvRows& rows) override {
    const std::vector<float> nans(static_cast<size_t>(rows.stride), std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < rows.n; ++i) {
      const bool broken = tokens() + rows.first + i >= broken_from_;
      const float* v = broken ? nans.data() : rows.v + i * rows.stride;
      full_->write(layer, {rows.k + i * rows.stride, v, rows.stride, rows.first + i, 1});
    }
  }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override {
    return std::make_unique<BrokenSequence>(full_->resume(prompt_tokens), broken_from_);
  }
  std::unique_ptr<SequenceCache> fork() const override {
    return std::make_unique<BrokenSequence>(full_->fork(), broken_from_);
  }

 private:
  std::unique_ptr<SequenceCache> full_;
  int64_t broken_from_;
};

class BrokenPolicy final : public KvCachePolicy {
 public:
  explicit BrokenPolicy(std::unique_ptr<KvCachePolicy> full) : full_(std::move(full)) {}
  std::string_view name() const override { return "broken"; }
  int64_t max_bytes(int64_t prompt, int64_t n) const override { return full_->max_bytes(prompt, n); }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<BrokenSequence>(full_->new_sequence(prompt_tokens), 192);
  }

 private:
  std::unique_ptr<KvCachePolicy> full_;
};

// Knows the registry's policies and "broken", which stores NaN values from token 192 on. A page begins there, because a
// page with valid tokens must not hold NaN in any slot.
struct TinyEvaluation {
  TinyWeights weights{tiny_config()};
  ThreadPool threads{2};
  std::unique_ptr<Model> llama = load_llama(weights, {.weights = WeightFormat::kF32}, threads);
  CacheShape shape = llama_cache_shape(llama->config(), {.weights = WeightFormat::kF32});
  PolicyContext context = policy_context(*llama, shape, &threads);
  EvaluationModel model{*llama, threads, shape,
                        [this](const nlohmann::json& spec) -> std::unique_ptr<KvCachePolicy> {
                          if (spec == "broken") return std::make_unique<BrokenPolicy>(make_policy(context, "full"));
                          return make_policy(context, spec);
                        },
                        &context};

  std::vector<TokenId> text(int64_t n) const {
    std::mt19937 random(3);
    std::vector<TokenId> tokens(static_cast<size_t>(n));
    for (TokenId& token : tokens)
      token = static_cast<TokenId>(random() % static_cast<unsigned>(weights.config().vocab_size));
    return tokens;
  }
};

}  // namespace smartkv
