#include "cache/stages/token_scorer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "cache/rope.h"

namespace smartkv {
namespace {

// task(head, from, end) for `heads` KV heads and the tokens [0, n) in blocks, in parallel.
template <typename Task>
void for_blocks(const PolicyContext& context, int64_t heads, int64_t n, const Task& task) {
  constexpr int64_t kBlock = kernels::kPageTokens;
  const int64_t blocks = (n + kBlock - 1) / kBlock, all = heads * blocks;
  context.for_each(all, [&](int64_t i) {
    const int64_t from = i % blocks * kBlock;
    task(i / blocks, from, std::min(n, from + kBlock));
  });
}

// The baseline "sinks + window" (StreamingLLM, Xiao et al. 2024): no token is worth a slot.
class NoScorer final : public TokenScorer {
 public:
  std::string name() const override { return "none"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores) const override {
    std::fill_n(scores, context.shape.n_kv_heads * tokens.n, 0.0f);
  }
};

class RandomScorer final : public TokenScorer {
 public:
  std::string name() const override { return "random"; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores) const override {
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
  bool comparable() const override { return false; }  // each head's keys have a length of their own
  bool needs_keys() const override { return true; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores) const override {
    const auto dim = static_cast<size_t>(context.shape.head_dim);
    for_blocks(context, context.shape.n_kv_heads, tokens.n, [&](int64_t head, int64_t from, int64_t end) {
      for (int64_t i = head * tokens.n + from; i < head * tokens.n + end; ++i) {
        float sum = 0;
        for (const float value : std::span(tokens.k + i * context.shape.head_dim, dim)) sum += value * value;
        scores[i] = -std::sqrt(sum);
      }
    });
  }
};

// Attention received, averaged exponentially over the boundaries (as H2O, Zhang et al. 2023, with a horizon).
class AttentionScorer final : public TokenScorer {
 public:
  std::string name() const override { return "attention"; }
  int64_t n_probes() const override { return 16; }
  void score_mass(std::span<const float> previous, std::span<float> mass) const override {
    constexpr float kDecay = 0.9f;
    for (size_t i = 0; i < mass.size(); ++i) mass[i] += kDecay * previous[i];
  }
};

// Attention from the last queries alone, pooled over neighbours (SnapKV, Li et al. 2024).
class SnapKvScorer final : public TokenScorer {
 public:
  std::string name() const override { return "snapkv"; }
  int64_t n_probes() const override { return 32; }
  void score_mass(std::span<const float>, std::span<float> mass) const override {
    constexpr int64_t kReach = 3;  // a kernel of 7
    const std::vector<float> own(mass.begin(), mass.end());
    const auto n = static_cast<int64_t>(own.size());
    for (int64_t i = 0; i < n; ++i) {
      const auto from = own.begin() + std::max<int64_t>(0, i - kReach);
      mass[static_cast<size_t>(i)] = *std::max_element(from, own.begin() + std::min(n, i + kReach + 1));
    }
  }
};

// When the token expires by the lifespan that the layer's gate expects of its key before RoPE.
class LearnedScorer final : public TokenScorer {
 public:
  explicit LearnedScorer(std::shared_ptr<const Gate> gate) : gate_(std::move(gate)) {}
  std::string name() const override { return "learned"; }
  bool needs_keys() const override { return true; }
  bool needs_values() const override { return true; }
  bool needs_angles() const override { return true; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores) const override {
    score_both(context, tokens, scores, nullptr);
  }
  bool knows_importance() const override { return gate_->has_importance(); }
  void score_both(const PolicyContext& context, const ScoredTokens& tokens, float* scores, float* importance) const override {
    const int64_t dim = context.shape.head_dim, heads = context.shape.n_kv_heads, n = tokens.n;
    for_blocks(context, heads, n, [&](int64_t head, int64_t from, int64_t end) {
      for (int64_t i = from; i < end; ++i) unrotate(tokens.angles + i * dim, dim, tokens.k + (head * n + i) * dim);
    });
    gate_->score(context.threads, tokens.layer, tokens.k, heads * n, scores);
    // The gate says for how long; what counts is until when. A token that has lived its life makes room.
    for (int64_t i = 0; i < heads * n; ++i) scores[i] = expiry(tokens.first + i % n, scores[i]);
    if (importance == nullptr) return;
    const Gate::TokenRows rows{context.first_kv_head(), heads, tokens.k, tokens.v, n};
    for_blocks(context, context.all_kv_heads(), n, [&](int64_t head, int64_t from, int64_t end) {
      gate_->importance(tokens.layer, head, rows, from, end, importance + head * n);
    });
  }

 private:
  std::shared_ptr<const Gate> gate_;
};

}  // namespace

void TokenScorer::score(const PolicyContext&, const ScoredTokens&, float*) const {
  throw CacheError("scorer \"" + name() + "\" looks at attention, not at contents");
}

void TokenScorer::score_mass(std::span<const float>, std::span<float>) const {
  throw CacheError("scorer \"" + name() + "\" looks at contents, not at attention");
}

void TokenScorer::score_both(const PolicyContext&, const ScoredTokens&, float*, float*) const {
  throw CacheError("scorer \"" + name() + "\" does not know what tokens matter to questions");
}

void score_tail(const PolicyContext& context, const TokenScorer& scorer, std::span<const DenseLayer> tail, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take) {
  constexpr int64_t kRun = 512;  // tokens whose keys are copied at once, of one layer or of several
  const int64_t dim = context.shape.head_dim, heads = context.shape.n_kv_heads, n_layers = context.shape.n_layers;
  std::vector<float> angles, scores, important, keys, values;
  for (int64_t n = 0; *scored < end; *scored += n) {
    n = std::min(end - *scored, kRun);
    if (scorer.needs_angles()) {
      angles.resize(static_cast<size_t>(n * dim));
      for (int64_t i = 0; i < n; ++i) context.rope(*scored + i, angles.data() + i * dim, angles.data() + i * dim + dim / 2);
    }
    scores.resize(static_cast<size_t>(heads * n));
    if (importance) important.resize(static_cast<size_t>(context.all_kv_heads() * n));
    const int64_t together = std::min(n_layers, std::max<int64_t>(1, kRun / n)), layer_floats = heads * n * dim;
    if (scorer.needs_keys()) keys.resize(static_cast<size_t>(together * layer_floats));
    if (importance && scorer.needs_values()) values.resize(keys.size());
    for (int64_t first = 0; first < n_layers; first += together) {
      const int64_t some = std::min(together, n_layers - first);
      if (scorer.needs_keys()) {
        context.for_each(some * heads, [&](int64_t i) {
          const int64_t layer = first + i / heads, head = i % heads;
          tail[static_cast<size_t>(layer)].read(*scored, n, head, 1, keys.data() + i * n * dim,
                                                values.empty() ? nullptr : values.data() + i * n * dim, 0);
        });
        context.pool->backend()->finish();
      }
      for (int64_t layer = first; layer < first + some; ++layer) {
        const int64_t at = (layer - first) * layer_floats;
        const ScoredTokens tokens{layer, *scored, n, keys.empty() ? nullptr : keys.data() + at,
                                  values.empty() ? nullptr : values.data() + at, angles.data()};
        if (importance) {
          scorer.score_both(context, tokens, scores.data(), important.data());
        } else {
          scorer.score(context, tokens, scores.data());
        }
        take(layer, {n, scores, important});
      }
    }
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
  return std::make_unique<LearnedScorer>(context.load_gate(gate));
}

}  // namespace smartkv
