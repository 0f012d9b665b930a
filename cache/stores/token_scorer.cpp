#include "cache/stores/token_scorer.h"

#include <algorithm>
#include <optional>

#include "cache/stores/tail_scores.h"
#include "kernels/pending_results.h"

namespace smartkv {
namespace {

// A run of tokens that are scored together. scores: f32 [n_layers, n_kv_heads, n]. importance: f32 [n_layers,
// context.all_kv_heads(), n], the part that follows from this process's KV heads.
struct Run {
  int64_t first, n;
  std::vector<float> scores, importance;
};

void score_run(const PolicyContext& context, const TokenScorer& scorer, const StageView& view, Run* run) {
  const std::span<const DenseLayer> tail = view.tail;
  const int64_t dim = context.shape.head_dim, n_layers = context.shape.n_layers;
  const auto [first, n] = std::pair(run->first, run->n);
  const auto at = [&](std::vector<float>& of, int64_t layer) {
    return of.empty() ? nullptr : of.data() + layer * (static_cast<int64_t>(of.size()) / n_layers);
  };
  if (const auto* const contents = std::get_if<std::shared_ptr<const ContentScorer>>(&scorer)) {
    for (int64_t layer = 0; layer < n_layers; ++layer) {
      (*contents)->score(context, {layer, first, n}, at(run->scores, layer), at(run->importance, layer));
    }
    return;
  }
  if (hidden_scorer(scorer) != nullptr) {
    for (int64_t layer = 0; layer < n_layers; ++layer) view.scores->read(layer, first, n, at(run->scores, layer));
    return;
  }
  const PageScorer& of_pages = *std::get<std::shared_ptr<const PageScorer>>(scorer);
  std::vector<float> angles(of_pages.needs_angles() ? static_cast<size_t>(n * dim) : 0);
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
  std::vector<TokenScoring> layers;
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const auto of_layer = std::span(segments).subspan(static_cast<size_t>(layer * pages), static_cast<size_t>(pages));
    layers.push_back({layer, of_layer, from, n, angles.data(), at(run->scores, layer), at(run->importance, layer)});
  }
  of_pages.score(context, layers);
}

}  // namespace

std::string_view name_of(const TokenScorer& scorer) {
  return std::visit([](const auto& kind) { return kind->name(); }, scorer);
}

bool comparable(const TokenScorer& scorer) {
  return std::visit([](const auto& kind) { return kind->comparable(); }, scorer);
}

bool knows_importance(const TokenScorer& scorer) {
  return std::visit([](const auto& kind) { return kind->knows_importance(); }, scorer);
}

bool ranks_tokens(const TokenScorer& scorer) {
  return std::visit([](const auto& kind) { return kind->ranks_tokens(); }, scorer);
}

const HiddenScorer* hidden_scorer(const TokenScorer& scorer) {
  const auto* const hidden = std::get_if<std::shared_ptr<const HiddenScorer>>(&scorer);
  return hidden == nullptr ? nullptr : hidden->get();
}

const AttentionScorer* attention_scorer(const TokenScorer& scorer) {
  const auto* const attention = std::get_if<std::shared_ptr<const AttentionScorer>>(&scorer);
  return attention == nullptr ? nullptr : attention->get();
}

int64_t n_probes(const TokenScorer& scorer) {
  const AttentionScorer* const attention = attention_scorer(scorer);
  return attention == nullptr ? 0 : attention->n_probes();
}

bool pools_heads(const TokenScorer& scorer) {
  const AttentionScorer* const attention = attention_scorer(scorer);
  return attention != nullptr && attention->pools_heads();
}

void score_tail(const PolicyContext& context, const TokenScorer& scorer, const StageView& view, int64_t* scored,
                int64_t end, bool importance,
                const std::function<void(int64_t layer, const TokenScores& scores)>& take) {
  constexpr int64_t kRun = 512;  // Tokens. Bounds what the CPU copies at once: a layer's keys.
  const int64_t n_layers = context.shape.n_layers;
  std::vector<Run> runs;
  std::optional<kernels::PendingResults> results;
  const auto* const of_pages = std::get_if<std::shared_ptr<const PageScorer>>(&scorer);
  if (of_pages != nullptr && *scored < end) results.emplace(*context.pool->backend());
  for (int64_t first = *scored; first < end; first += runs.back().n) {
    Run& run = runs.emplace_back(Run{first, std::min(end - first, kRun), {}, {}});
    run.scores.resize(static_cast<size_t>(n_layers * context.shape.n_kv_heads * run.n));
    if (importance) run.importance.resize(static_cast<size_t>(n_layers * context.all_kv_heads() * run.n));
    score_run(context, scorer, view, &run);
  }
  if (results) results->wait();
  const auto of_layer = [n_layers](const std::vector<float>& of, int64_t layer) {
    const size_t size = of.size() / static_cast<size_t>(n_layers);
    return std::span<const float>(of).subspan(static_cast<size_t>(layer) * size, size);
  };
  for (Run& run : runs) {
    if (of_pages != nullptr) (*of_pages)->finish(run.first, run.n, run.scores);
    for (int64_t layer = 0; layer < n_layers; ++layer)
      take(layer, {run.n, of_layer(run.scores, layer), of_layer(run.importance, layer)});
    *scored += run.n;
  }
}

}  // namespace smartkv
