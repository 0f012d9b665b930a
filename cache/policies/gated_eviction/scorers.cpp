#include "cache/policies/gated_eviction/scorers.h"

#include "cache/policies/calibrated/sensitivity.h"
#include "cache/policies/gated_eviction/gate.h"
#include "cache/policies/gated_eviction/gate_jobs.h"
#include "cache/stores/importance_scorer.h"

namespace smartkv {
namespace {

// Keys of small norm receive much attention (Devoto et al. 2024).
class KeyNormScorer final : public PageScorer {
 public:
  std::string_view name() const override { return "key_norm"; }
  bool comparable() const override { return false; }  // The keys of each head have their own scale.
  void score(const PolicyContext& context, std::span<const TokenScoring> layers) const override {
    score_tokens(*context.pool->backend(), context.threads, context.shape, nullptr, layers);
  }
  void finish(int64_t /*first*/, int64_t /*n*/, std::span<float> scores) const override {
    for (float& score : scores) score = -score;
  }
};

// Attention received, summed over the boundaries with exponential decay (as H2O, Zhang et al. 2023, with a horizon).
class DecayedAttentionScorer final : public AttentionScorer {
 public:
  std::string_view name() const override { return "attention"; }
  int64_t n_probes() const override { return 16; }
  void score(std::span<const float> previous, std::span<float> mass) const override {
    constexpr float kDecay = 0.9f;
    for (size_t i = 0; i < mass.size(); ++i) mass[i] += kDecay * previous[i];
  }
};

}  // namespace

TokenScorer make_gate_scorer(const PolicyContext& context, const std::string& gate, bool ranks_within_heads) {
  if (!context.load_gate) throw ModelLacks("kv_cache.scorer: \"learned\" needs a model that can load gates");
  const std::shared_ptr<const Gate> loaded = context.load_gate(gate);
  TokenScorer scorer = loaded->scorer(context);
  if (ranks_within_heads && !ranks_tokens(scorer)) {
    throw ModelLacks("kv_cache.gate: expected a gate that ranks the tokens of a KV head, found " +
                     loaded->description() + ", which scores whole heads (gated_eviction with \"sizes\": \"shared\")");
  }
  return scorer;
}

std::shared_ptr<const PageScorer> make_calibrated_scorer(const PolicyContext& context) {
  const auto sensitivity = context.load_sensitivity == nullptr ? nullptr : context.load_sensitivity();
  if (sensitivity == nullptr) throw ModelLacks("kv_cache.scorer: \"calibrated\" needs a model that was calibrated");
  return make_importance_scorer(importance_of(sensitivity));
}

BestScorer make_best_scorer(const PolicyContext& context, const std::string& gate, bool ranks_within_heads) {
  try {
    return {make_gate_scorer(context, gate, ranks_within_heads), ""};
  } catch (const ModelLacks&) {
    if (!gate.empty()) throw;
  }
  try {
    return {make_calibrated_scorer(context), "scorer calibrated, because the model has no gate"};
  } catch (const ModelLacks&) {
    return {make_decayed_attention_scorer(), "scorer attention, because the model has no gate and was not calibrated"};
  }
}

std::shared_ptr<const PageScorer> make_key_norm_scorer() { return std::make_shared<KeyNormScorer>(); }

std::shared_ptr<const AttentionScorer> make_decayed_attention_scorer() {
  return std::make_shared<DecayedAttentionScorer>();
}

}  // namespace smartkv
