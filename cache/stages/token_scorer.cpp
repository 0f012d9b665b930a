#include "cache/stages/token_scorer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "kernels/pending_results.h"

namespace smartkv {
namespace {

// The baseline "sinks + window" (StreamingLLM, Xiao et al. 2024): no token is worth a slot.
class NoScorer final : public TokenScorer {
 public:
  std::string name() const override { return "none"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* /*importance*/) const override {
    std::fill_n(scores, context.shape.n_kv_heads * tokens.n, 0.0f);
  }
};

class RandomScorer final : public TokenScorer {
 public:
  std::string name() const override { return "random"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* /*importance*/) const override {
    for (int64_t head = 0; head < context.shape.n_kv_heads; ++head) {
      for (int64_t i = 0; i < tokens.n; ++i) {
        // SplitMix64 (Steele et al. 2014) of layer, head and position.
        uint64_t x = static_cast<uint64_t>((tokens.layer * 4096 + context.first_kv_head() + head) << 40 | (tokens.first + i)) + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        scores[head * tokens.n + i] = static_cast<float>((x ^ (x >> 31)) >> 40);
      }
    }
  }
};

// Keys of small norm receive much attention (Devoto et al. 2024).
class KeyNormScorer final : public TokenScorer {
 public:
  std::string name() const override { return "key_norm"; }
  bool comparable() const override { return false; }  // The keys of each head have their own scale.
  bool looks_at_pages() const override { return true; }
  void score_pages(const PolicyContext& context, std::span<const kernels::TokenScoring> layers) const override {
    context.pool->backend()->score(context.shape.type, context.shape.n_kv_heads, context.shape.head_dim, nullptr, layers);
  }
  void finish_scores(int64_t /*first*/, int64_t /*n*/, std::span<float> scores) const override {
    for (float& score : scores) score = -score;
  }
};

// Attention received, summed over the boundaries with exponential decay (as H2O, Zhang et al. 2023, with a horizon).
class AttentionScorer final : public TokenScorer {
 public:
  std::string name() const override { return "attention"; }
  int64_t n_probes() const override { return 16; }
  void score_mass(std::span<const float> previous, std::span<float> mass) const override {
    constexpr float kDecay = 0.9f;
    for (size_t i = 0; i < mass.size(); ++i) mass[i] += kDecay * previous[i];
  }
};

// Attention from the last queries alone, max-pooled over neighboring tokens (SnapKV, Li et al. 2024).
class SnapKvScorer final : public TokenScorer {
 public:
  std::string name() const override { return "snapkv"; }
  int64_t n_probes() const override { return 32; }
  void score_mass(std::span<const float>, std::span<float> mass) const override {
    constexpr int64_t kReach = 3;  // A window of 7 tokens.
    const std::vector<float> own(mass.begin(), mass.end());
    const auto n = static_cast<int64_t>(own.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto from = own.begin() + std::max<int64_t>(0, i - kReach);
      mass[static_cast<size_t>(i)] = *std::max_element(from, own.begin() + std::min(n, i + kReach + 1));
    }
  }
};

// Scores a token by the position at which it expires, given the lifespan that the layer's gate predicts from its key
// before RoPE.
class LearnedScorer final : public TokenScorer {
 public:
  LearnedScorer(const PolicyContext& context, const Gate& gate)
      : knows_importance_(gate.has_importance()), gate_(context.pool->backend()->hold(gate.maps(context.first_kv_head(), context.shape.n_kv_heads))) {}
  std::string name() const override { return "learned"; }
  bool knows_importance() const override { return knows_importance_; }
  bool looks_at_pages() const override { return true; }
  bool needs_angles() const override { return true; }
  void score_pages(const PolicyContext& context, std::span<const kernels::TokenScoring> layers) const override {
    context.pool->backend()->score(context.shape.type, context.shape.n_kv_heads, context.shape.head_dim, gate_, layers);
  }
  // The gate predicts how long a token stays useful. The score is until when, so that a token past its lifespan makes
  // room.
  void finish_scores(int64_t first, int64_t n, std::span<float> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = expiry(first + static_cast<int64_t>(i) % n, scores[i]);
  }

 private:
  bool knows_importance_;
  std::shared_ptr<const kernels::BackendGate> gate_;
};

// A run of tokens that are scored together. scores: f32 [n_layers, n_kv_heads, n]. importance: f32 [n_layers,
// context.all_kv_heads(), n], the part that follows from this process's KV heads.
struct Run {
  int64_t first, n;
  std::vector<float> scores, importance;
};

void score_run(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, Run* run) {
  const int64_t dim = context.shape.head_dim, n_layers = context.shape.n_layers;
  const auto [first, n] = std::pair(run->first, run->n);
  const auto at = [&](std::vector<float>& of, int64_t layer) {
    return of.empty() ? nullptr : of.data() + layer * (static_cast<int64_t>(of.size()) / n_layers);
  };
  if (!scorer.looks_at_pages()) {
    for (int64_t layer = 0; layer < n_layers; ++layer) {
      scorer.score(context, {layer, first, n}, at(run->scores, layer), at(run->importance, layer));
    }
    return;
  }
  std::vector<float> angles(scorer.needs_angles() ? static_cast<size_t>(n * dim) : 0);
  for (int64_t i = 0; !angles.empty() && i < n; ++i) {
    context.rope(first + i, angles.data() + i * dim, angles.data() + i * dim + dim / 2);
  }
  const int64_t skipped = (first - tail[0].first()) / kernels::kPageTokens;  // Pages.
  const int64_t from = first - tail[0].first() - skipped * kernels::kPageTokens;
  const int64_t pages = (from + n + kernels::kPageTokens - 1) / kernels::kPageTokens;
  std::vector<kernels::KvSegment> segments;
  for (const DenseLayer& layer : tail) {
    for (int64_t i = 0; i < pages; ++i) segments.push_back(layer.segment(skipped + i, kernels::kPageTokens));
  }
  std::vector<kernels::TokenScoring> layers;
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const auto of_layer = std::span(segments).subspan(static_cast<size_t>(layer * pages), static_cast<size_t>(pages));
    layers.push_back({layer, of_layer, from, n, angles.data(), at(run->scores, layer), at(run->importance, layer)});
  }
  scorer.score_pages(context, layers);
}

}  // namespace

void TokenScorer::score(const PolicyContext&, const ScoredTokens&, float*, float*) const {
  throw CacheError("scorer \"" + name() + "\" scores attention, not contents");
}

void TokenScorer::score_pages(const PolicyContext&, std::span<const kernels::TokenScoring>) const {
  throw CacheError("scorer \"" + name() + "\" does not score pages");
}

void TokenScorer::score_mass(std::span<const float>, std::span<float>) const {
  throw CacheError("scorer \"" + name() + "\" scores contents, not attention");
}

void score_tail(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take) {
  constexpr int64_t kRun = 512;  // Tokens. Bounds what the CPU copies at once: a layer's keys.
  const int64_t n_layers = context.shape.n_layers;
  std::vector<Run> runs;
  std::optional<kernels::PendingResults> results;
  if (scorer.looks_at_pages() && *scored < end) results.emplace(*context.pool->backend());
  for (int64_t first = *scored; first < end; first += runs.back().n) {
    Run& run = runs.emplace_back(Run{first, std::min(end - first, kRun), {}, {}});
    run.scores.resize(static_cast<size_t>(n_layers * context.shape.n_kv_heads * run.n));
    if (importance) run.importance.resize(static_cast<size_t>(n_layers * context.all_kv_heads() * run.n));
    score_run(context, scorer, tail, &run);
  }
  if (results) results->wait();
  const auto of_layer = [n_layers](const std::vector<float>& of, int64_t layer) {
    const size_t size = of.size() / static_cast<size_t>(n_layers);
    return std::span<const float>(of).subspan(static_cast<size_t>(layer) * size, size);
  };
  for (Run& run : runs) {
    if (scorer.looks_at_pages()) scorer.finish_scores(run.first, run.n, run.scores);
    for (int64_t layer = 0; layer < n_layers; ++layer) take(layer, {run.n, of_layer(run.scores, layer), of_layer(run.importance, layer)});
    *scored += run.n;
  }
}

std::unique_ptr<TokenScorer> make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate) {
  if (name == "none") return std::make_unique<NoScorer>();
  if (name == "random") return std::make_unique<RandomScorer>();
  if (name == "key_norm") return std::make_unique<KeyNormScorer>();
  if (name == "attention") return std::make_unique<AttentionScorer>();
  if (name == "snapkv") return std::make_unique<SnapKvScorer>();
  if (name != "learned") throw CacheError("kv_cache.scorer: unknown scorer \"" + name + "\"");
  if (!context.load_gate) throw CacheError("kv_cache.scorer: \"learned\" needs a model that can load gates");
  return std::make_unique<LearnedScorer>(context, *context.load_gate(gate));
}

}  // namespace smartkv
