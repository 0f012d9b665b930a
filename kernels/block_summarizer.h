// Makes n entries of a KV head into fewer, each of which stands for a group of them:
//   sum_{i in group} exp(q.k_i + b_i) v_i  ~  exp(q.k_pivot + b) v.
// The key is always one of the block's: an average of keys after RoPE has no position.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace smartkv::kernels {

// Which entries' keys stay.
enum class PivotRule {
  kPosition,   // the middles of equal runs
  kCosine,     // farthest point on cosine, from the entry nearest to the mean direction on (Gonzalez 1985)
  kAttention,  // the largest root mean square attention from the queries (Zweiger et al. 2026, "highest attention keys")
  kMatching,   // orthogonal matching pursuit on the block's mass at each query (Zweiger et al. 2026)
};
// What stands for the values of a group.
enum class ValueRule {
  kMean,          // weighted by exp(b_i)
  kMass,          // weighted by the attention that each receives from the queries
  kLeastSquares,  // fitted to the block's output at each query, near kMass
};
// What is added to a pivot's score.
enum class BiasRule {
  kNone,    // 0: a group weighs what its pivot does
  kCount,   // log sum exp(b_i): log n for tokens
  kFitted,  // non-negative least squares of the block's mass at each query, within kMostBias of kCount
};

// Their names as parameters of policies, in the order of the values.
inline constexpr std::string_view kPivotRules[] = {"position", "cosine", "attention", "matching"};
inline constexpr std::string_view kValueRules[] = {"mean", "mass", "least_squares"};
inline constexpr std::string_view kBiasRules[] = {"none", "count", "fitted"};

inline constexpr float kMostBias = 3;  // nats: how far a fitted bias may be from the count's

// How strongly a fit is held to what it starts from, as a share of the mean square of its columns. NOTES.md of block_summary
// has what other values did.
inline constexpr double kBiasRidge = 0.1, kValueRidge = 0.1;

struct SummaryRule {
  PivotRule pivots = PivotRule::kAttention;
  ValueRule values = ValueRule::kMass;
  BiasRule bias = BiasRule::kFitted;

  bool needs_queries() const {
    return pivots == PivotRule::kAttention || pivots == PivotRule::kMatching || values != ValueRule::kMean ||
           bias == BiasRule::kFitted;
  }
};

// n >= 1 entries of one KV head, in order of position.
struct EntryBlock {
  int64_t n = 0;
  int64_t head_dim = 0;
  const float* k = nullptr;     // f32 [n, head_dim], after RoPE
  const float* v = nullptr;     // f32 [n, head_dim]
  const float* bias = nullptr;  // f32 [n]: what is added to their scores
};

// Queries that stand for those to come.
struct SampledQueries {
  int64_t n = 0;
  std::vector<float> q;         // f32 [n, head_dim], times attention's scale
  std::vector<float> log_norm;  // f32 [n]: log of the sum of exp(score) over all that the query sees
};

// Attention that each entry receives from each query: f32 [queries, n].
std::vector<float> attention_matrix(const EntryBlock& block, const SampledQueries& queries);

struct BlockSummary {
  std::vector<int32_t> pivots;  // [summaries], numbers of entries, rising
  std::vector<int32_t> group;   // [n]: which summary an entry is part of
  std::vector<float> v;         // f32 [summaries, head_dim]
  std::vector<float> bias;      // f32 [summaries]
};

// At most `summaries` >= 1 of them: as many as there are entries if these are fewer, which then stay as they are.
// `attention` is attention_matrix(block, queries); empty if the rule needs no queries.
BlockSummary summarize(const SummaryRule& rule, const EntryBlock& block, std::span<const float> attention, int64_t summaries);

// 1 - cosine between each entry's key and the nearest of the pivots': f32 [n].
std::vector<float> novelty(const EntryBlock& block, std::span<const int32_t> pivots);

// Entropy of a distribution in proportion to `mass` [n], none below 0, over that of an even one: 0 to 1. 0 where nothing has mass.
double entropy_share(std::span<const float> mass);

}  // namespace smartkv::kernels
