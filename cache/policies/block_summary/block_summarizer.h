// Replaces n entries of a KV head by fewer entries, each of which stands for a group:
//   sum_{i in group} exp(q.k_i + b_i) v_i  ~  exp(q.k_pivot + b) v.
// The key of a group is always the key of one of the block's entries: an average of keys after RoPE has no position.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cache/summaries/sampled_queries.h"

namespace smartkv {

// Which entries become pivots. A pivot keeps its key.
enum class PivotRule {
  kPosition,  // The middles of runs of equal length.
  kCosine,    // Farthest points by cosine, starting with the entry nearest to the mean direction (Gonzalez 1985).
  // The largest root mean square attention from the queries (Zweiger et al. 2026, "highest attention keys").
  kAttention,
  kMatching,  // Orthogonal matching pursuit on the block's mass at each query (Zweiger et al. 2026).
};
// How the value of a group is computed.
enum class ValueRule {
  kMean,          // Mean of the values, weighted by exp(b_i).
  kMass,          // Mean of the values, weighted by the attention that each entry receives from the queries.
  kLeastSquares,  // Fitted to the block's output at each query, near kMass.
};
// How the bias of a group is computed, which is added to the pivot's score.
enum class BiasRule {
  kNone,    // The bias of the pivot, 0 for a token: the group weighs as much as its pivot.
  kCount,   // log sum exp(b_i) over the group: log n for n tokens.
  kFitted,  // Non-negative least squares fit of the block's mass at each query, within kMostBias of kCount.
};

// Names of the rules as policy parameters, in the order of the enum values.
inline constexpr std::string_view kPivotRules[] = {"position", "cosine", "attention", "matching"};
inline constexpr std::string_view kValueRules[] = {"mean", "mass", "least_squares"};
inline constexpr std::string_view kBiasRules[] = {"none", "count", "fitted"};

inline constexpr float kMostBias = 3;  // How far a fitted bias may be from that of kCount, in nats.

// How strongly a fit is held to its starting point: as a share of the mean square of its columns (biases), or of the
// block's squared mass per summary (values). NOTES.md of block_summary records the effect of other values.
inline constexpr double kBiasRidge = 0.1, kValueRidge = 0.1;

// How summarize() chooses the pivots, values and biases of a block.
struct SummaryRule {
  PivotRule pivots = PivotRule::kAttention;
  ValueRule values = ValueRule::kMass;
  BiasRule bias = BiasRule::kFitted;

  // Returns whether summarize() needs the attention of sampled queries.
  bool needs_queries() const {
    return pivots == PivotRule::kAttention || pivots == PivotRule::kMatching || values != ValueRule::kMean ||
           bias == BiasRule::kFitted;
  }
};

// n >= 1 entries of one KV head, in order of position. The caller owns the memory.
struct EntryBlock {
  int64_t n = 0;
  int64_t head_dim = 0;
  const float* k = nullptr;     // f32 [n, head_dim], after RoPE
  const float* v = nullptr;     // f32 [n, head_dim]
  const float* bias = nullptr;  // f32 [n], added to the scores of the entries
};

// Returns the attention that each entry receives from each query: f32 [queries.n, block.n].
std::vector<float> attention_matrix(const EntryBlock& block, const SampledQueries& queries);

// The result of summarize().
struct BlockSummary {
  std::vector<int32_t> pivots;  // [summaries]: indices of the pivot entries, ascending
  std::vector<int32_t> group;   // [n]: the summary that each entry is part of
  std::vector<float> v;         // f32 [summaries, head_dim]
  std::vector<float> bias;      // f32 [summaries]
};

// Returns at most `summaries` summaries. If the block has no more entries than that, every entry stays as it is.
//   attention: attention_matrix(block, queries), or empty if the rule needs no queries.
// REQUIRES: summaries >= 1.
BlockSummary summarize(const SummaryRule& rule, const EntryBlock& block, std::span<const float> attention,
                       int64_t summaries);

// Returns f32 [n]: 1 - cosine between the key of each entry and the nearest key of a pivot.
std::vector<float> novelty(const EntryBlock& block, std::span<const int32_t> pivots);

// Returns the entropy of a distribution proportional to `mass` [n], divided by the entropy of the uniform distribution:
// 0 to 1. Returns 0 if nothing has mass. REQUIRES: no mass is below 0.
double entropy_share(std::span<const float> mass);

}  // namespace smartkv
