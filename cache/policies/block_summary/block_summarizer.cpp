#include "cache/policies/block_summary/block_summarizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cache/policies/block_summary/least_squares.h"

namespace smartkv {
namespace {

// Returns the f32 dot product, summed in 16 partial sums. Their order is fixed, and compilers can vectorize the loop.
float dot(const float* a, const float* b, int64_t n) {  // n is a multiple of 16
  float sums[16] = {};
  for (int64_t i = 0; i < n; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

std::vector<float> unit_keys(const EntryBlock& block) {
  std::vector<float> units(block.k, block.k + block.n * block.head_dim);
  for (int64_t i = 0; i < block.n; ++i) {
    float* unit = units.data() + i * block.head_dim;
    const float norm = std::sqrt(dot(unit, unit, block.head_dim));
    if (!(norm > 0)) continue;
    for (int64_t d = 0; d < block.head_dim; ++d) unit[d] /= norm;
  }
  return units;
}

// For each entry, the cosine to the nearest pivot and the number of that pivot.
struct Nearest {
  std::vector<float> cosine;
  std::vector<int32_t> pivot;
};

// Updates `nearest` with entry `pivot`, which is pivot number `number`.
void consider(const std::vector<float>& units, int64_t dim, int64_t pivot, int32_t number, Nearest* nearest) {
  for (size_t i = 0; i < nearest->cosine.size(); ++i) {
    const float cosine = dot(units.data() + static_cast<int64_t>(i) * dim, units.data() + pivot * dim, dim);
    if (number > 0 && cosine <= nearest->cosine[i]) continue;
    nearest->cosine[i] = cosine;
    nearest->pivot[i] = number;
  }
}

Nearest nearest_pivots(const EntryBlock& block, const std::vector<float>& units, std::span<const int32_t> pivots) {
  Nearest nearest{std::vector<float>(static_cast<size_t>(block.n)), std::vector<int32_t>(static_cast<size_t>(block.n))};
  for (size_t p = 0; p < pivots.size(); ++p) {
    consider(units, block.head_dim, pivots[p], static_cast<int32_t>(p), &nearest);
  }
  for (size_t p = 0; p < pivots.size(); ++p) nearest.pivot[static_cast<size_t>(pivots[p])] = static_cast<int32_t>(p);
  return nearest;
}

std::vector<int32_t> position_pivots(int64_t n, int64_t count) {
  std::vector<int32_t> pivots;
  for (int64_t p = 0; p < count; ++p) pivots.push_back(static_cast<int32_t>((p * n / count + (p + 1) * n / count) / 2));
  return pivots;
}

std::vector<int32_t> cosine_pivots(const EntryBlock& block, const std::vector<float>& units, int64_t count) {
  const int64_t dim = block.head_dim;
  std::vector<float> mean(static_cast<size_t>(dim), 0.0f);
  for (int64_t i = 0; i < block.n * dim; ++i) mean[static_cast<size_t>(i % dim)] += units[static_cast<size_t>(i)];
  int64_t next = 0;
  float best = -INFINITY;
  for (int64_t i = 0; i < block.n; ++i) {
    const float cosine = dot(units.data() + i * dim, mean.data(), dim);
    if (cosine > best) best = cosine, next = i;
  }
  Nearest nearest{std::vector<float>(static_cast<size_t>(block.n)), std::vector<int32_t>(static_cast<size_t>(block.n))};
  std::vector<int32_t> pivots;
  for (int64_t p = 0; p < count; ++p) {
    pivots.push_back(static_cast<int32_t>(next));
    consider(units, dim, next, static_cast<int32_t>(p), &nearest);
    // An entry is chosen once, even if another has the same key.
    for (const int32_t pivot : pivots) nearest.cosine[static_cast<size_t>(pivot)] = INFINITY;
    next = std::min_element(nearest.cosine.begin(), nearest.cosine.end()) - nearest.cosine.begin();
  }
  return pivots;
}

// Returns the entries in descending order of their root mean square attention.
std::vector<int32_t> by_attention(int64_t n, std::span<const float> attention) {
  std::vector<double> squares(static_cast<size_t>(n), 0.0);
  for (size_t i = 0; i < attention.size(); ++i) {
    squares[i % static_cast<size_t>(n)] += static_cast<double>(attention[i]) * attention[i];
  }
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return squares[static_cast<size_t>(a)] > squares[static_cast<size_t>(b)];
  });
  return order;
}

// Returns [columns, columns]: the dot products of the given columns of the attention matrix.
std::vector<double> gram_of(std::span<const float> attention, int64_t n, std::span<const int32_t> columns) {
  const size_t count = columns.size();
  std::vector<double> gram(count * count, 0.0), row(count);
  for (size_t at = 0; at < attention.size(); at += static_cast<size_t>(n)) {
    for (size_t i = 0; i < count; ++i) row[i] = attention[at + static_cast<size_t>(columns[i])];
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j <= i; ++j) gram[i * count + j] += row[i] * row[j];
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) gram[j * count + i] = gram[i * count + j];
  }
  return gram;
}

std::vector<int32_t> matching_pivots(const EntryBlock& block, std::span<const float> attention, int64_t count) {
  const auto n = static_cast<size_t>(block.n);
  std::vector<int32_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<double> gram = gram_of(attention, block.n, all);
  std::vector<double> target(n, 0.0);  // Dot products of the columns with the block's mass.
  for (size_t i = 0; i < n; ++i)
    target[i] = std::accumulate(gram.begin() + static_cast<std::ptrdiff_t>(i * n),
                                gram.begin() + static_cast<std::ptrdiff_t>((i + 1) * n), 0.0);
  std::vector<int32_t> pivots;
  std::vector<double> weights;
  std::vector<bool> chosen(n, false);
  while (static_cast<int64_t>(pivots.size()) < count) {
    size_t next = n;
    double best = 0;
    for (size_t i = 0; i < n; ++i) {
      double product = target[i];
      for (size_t p = 0; p < pivots.size(); ++p) product -= gram[i * n + static_cast<size_t>(pivots[p])] * weights[p];
      product /= std::sqrt(std::max(gram[i * n + i], 1e-300));
      if (!chosen[i] && product > best) best = product, next = i;
    }
    if (next == n) break;  // nothing is left to explain
    chosen[next] = true;
    pivots.push_back(static_cast<int32_t>(next));
    weights.push_back(0);
    const size_t size = pivots.size();
    std::vector<double> sub(size * size), rhs(size);
    for (size_t i = 0; i < size; ++i) {
      rhs[i] = target[static_cast<size_t>(pivots[i])];
      for (size_t j = 0; j < size; ++j)
        sub[i * size + j] = gram[static_cast<size_t>(pivots[i]) * n + static_cast<size_t>(pivots[j])];
    }
    bounded_least_squares(sub, rhs, std::vector<double>(size, 0.0), std::vector<double>(size, 1e30), weights);
  }
  for (const int32_t i : by_attention(block.n, attention)) {
    if (static_cast<int64_t>(pivots.size()) == count) break;
    if (!chosen[static_cast<size_t>(i)]) pivots.push_back(i);
  }
  return pivots;
}

std::vector<int32_t> choose_pivots(PivotRule rule, const EntryBlock& block, const std::vector<float>& units,
                                   std::span<const float> attention, int64_t count) {
  std::vector<int32_t> pivots;
  switch (rule) {
    case PivotRule::kPosition: pivots = position_pivots(block.n, count); break;
    case PivotRule::kCosine: pivots = cosine_pivots(block, units, count); break;
    case PivotRule::kAttention:
      pivots = by_attention(block.n, attention);
      pivots.resize(static_cast<size_t>(count));
      break;
    case PivotRule::kMatching: pivots = matching_pivots(block, attention, count); break;
  }
  std::sort(pivots.begin(), pivots.end());
  return pivots;
}

// Returns the group of each entry if the block is cut into equal runs by position.
std::vector<int32_t> position_groups(int64_t n, int64_t count) {
  std::vector<int32_t> group(static_cast<size_t>(n));
  for (int64_t p = 0; p < count; ++p) {
    std::fill(group.begin() + p * n / count, group.begin() + (p + 1) * n / count, static_cast<int32_t>(p));
  }
  return group;
}

// Returns exp(b) of each pivot, fitted near `count` so that the pivots have the block's mass at each query.
std::vector<double> fit_weights(const EntryBlock& block, std::span<const float> attention,
                                std::span<const int32_t> pivots, std::span<const double> count) {
  const size_t size = pivots.size();
  std::vector<double> gram = gram_of(attention, block.n, pivots), rhs(size, 0.0);
  for (size_t at = 0; at < attention.size(); at += static_cast<size_t>(block.n)) {
    const std::span<const float> row = attention.subspan(at, static_cast<size_t>(block.n));
    const double mass = std::accumulate(row.begin(), row.end(), 0.0);
    for (size_t i = 0; i < size; ++i) rhs[i] += row[static_cast<size_t>(pivots[i])] * mass;
  }
  // The unknowns are multiples of the weight that `count` gives a pivot: x = 1 is that weight.
  std::vector<double> unit(size), x(size, 1.0);
  for (size_t i = 0; i < size; ++i) unit[i] = count[i] / std::exp(static_cast<double>(block.bias[pivots[i]]));
  const double most = std::exp(static_cast<double>(kMostBias));
  double diagonal = 0;
  for (size_t i = 0; i < size; ++i) {
    rhs[i] *= unit[i];
    for (size_t j = 0; j < size; ++j) gram[i * size + j] *= unit[i] * unit[j];
    diagonal += gram[i * size + i] / static_cast<double>(size);
  }
  for (size_t i = 0; i < size; ++i) {
    gram[i * size + i] += kBiasRidge * diagonal;
    rhs[i] += kBiasRidge * diagonal;
  }
  bounded_least_squares(gram, rhs, std::vector<double>(size, 1 / most), std::vector<double>(size, most), x);
  for (size_t i = 0; i < size; ++i) x[i] *= count[i];
  return x;
}

// Moves v so that the output of the summaries comes closer to the output of the block at each query.
// weights: exp(b) of the summaries.
void fit_values(const EntryBlock& block, std::span<const float> attention, std::span<const int32_t> pivots,
                std::span<const double> weights, std::vector<float>* v) {
  const size_t size = pivots.size(), dim = static_cast<size_t>(block.head_dim), n = static_cast<size_t>(block.n);
  std::vector<double> gram(size * size, 0.0), rhs(size * dim, 0.0), share(size), error(dim);
  double squares = 0;  // Sum over the queries of the block's squared mass.
  for (size_t at = 0; at < attention.size(); at += n) {
    const double mass = std::accumulate(attention.begin() + static_cast<std::ptrdiff_t>(at),
                                        attention.begin() + static_cast<std::ptrdiff_t>(at + n), 0.0);
    squares += mass * mass;
    std::fill(error.begin(), error.end(), 0.0);
    for (size_t i = 0; i < n; ++i) {
      const double a = attention[at + i];
      for (size_t d = 0; d < dim; ++d) error[d] += a * block.v[i * dim + d];
    }
    for (size_t i = 0; i < size; ++i) {
      const auto pivot = static_cast<size_t>(pivots[i]);
      share[i] = attention[at + pivot] * weights[i] / std::exp(static_cast<double>(block.bias[pivot]));
      for (size_t d = 0; d < dim; ++d) error[d] -= share[i] * (*v)[i * dim + d];
    }
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) gram[i * size + j] += share[i] * share[j];
      for (size_t d = 0; d < dim; ++d) rhs[i * dim + d] += share[i] * error[d];
    }
  }
  if (!(squares > 0)) return;  // No query attends to this block.
  for (size_t i = 0; i < size; ++i) gram[i * size + i] += kValueRidge * squares / static_cast<double>(size);
  solve_positive(gram, block.head_dim, rhs);
  for (size_t i = 0; i < v->size(); ++i) (*v)[i] += static_cast<float>(rhs[i]);
}

// Returns the mean of each group's values, weighted by `weights` [n]. Weighs by exp(b) if all weights of a group are 0.
std::vector<float> group_values(const EntryBlock& block, std::span<const int32_t> group, int64_t count,
                                std::span<const double> weights) {
  const auto dim = static_cast<size_t>(block.head_dim);
  std::vector<double> total(static_cast<size_t>(count), 0.0), sums(static_cast<size_t>(count) * dim, 0.0);
  for (size_t i = 0; i < group.size(); ++i) total[static_cast<size_t>(group[i])] += weights[i];
  std::vector<double> used(total.size(), 0.0);
  for (size_t i = 0; i < group.size(); ++i) {
    const auto g = static_cast<size_t>(group[i]);
    const double weight = total[g] > 0 ? weights[i] : std::exp(static_cast<double>(block.bias[i]));
    used[g] += weight;
    for (size_t d = 0; d < dim; ++d) sums[g * dim + d] += weight * block.v[i * dim + d];
  }
  std::vector<float> v(sums.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(sums[i] / used[i / dim]);
  return v;
}

}  // namespace

std::vector<float> attention_matrix(const EntryBlock& block, const SampledQueries& queries) {
  std::vector<float> attention(static_cast<size_t>(queries.n * block.n));
  for (int64_t i = 0; i < queries.n; ++i) {
    for (int64_t j = 0; j < block.n; ++j) {
      const float score = dot(queries.q.data() + i * block.head_dim, block.k + j * block.head_dim, block.head_dim);
      const float log_share = score + block.bias[j] - queries.log_norm[static_cast<size_t>(i)];
      attention[static_cast<size_t>(i * block.n + j)] = std::exp(std::min(log_share, 0.0f));
    }
  }
  return attention;
}

BlockSummary summarize(const SummaryRule& rule, const EntryBlock& block, std::span<const float> attention,
                       int64_t summaries) {
  const int64_t count = std::min(summaries, block.n);
  BlockSummary summary;
  if (count == block.n) {
    summary.pivots.resize(static_cast<size_t>(block.n));
    std::iota(summary.pivots.begin(), summary.pivots.end(), 0);
    summary.group = summary.pivots;
    summary.v.assign(block.v, block.v + block.n * block.head_dim);
    summary.bias.assign(block.bias, block.bias + block.n);
    return summary;
  }
  const std::vector<float> units = unit_keys(block);
  summary.pivots = choose_pivots(rule.pivots, block, units, attention, count);
  summary.group = rule.pivots == PivotRule::kPosition ? position_groups(block.n, count)
                                                      : nearest_pivots(block, units, summary.pivots).pivot;
  std::vector<double> own(static_cast<size_t>(block.n)), mass(own.size(), 0.0),
      weights(static_cast<size_t>(count), 0.0);
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = std::exp(static_cast<double>(block.bias[i]));
    weights[static_cast<size_t>(summary.group[i])] += own[i];
  }
  for (size_t i = 0; i < attention.size(); ++i) mass[i % own.size()] += attention[i];
  summary.v = group_values(block, summary.group, count, rule.values == ValueRule::kMean ? own : mass);
  if (rule.bias == BiasRule::kNone) {
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = own[static_cast<size_t>(summary.pivots[i])];
  } else if (rule.bias == BiasRule::kFitted) {
    weights = fit_weights(block, attention, summary.pivots, weights);
  }
  if (rule.values == ValueRule::kLeastSquares) fit_values(block, attention, summary.pivots, weights, &summary.v);
  for (const double weight : weights) summary.bias.push_back(static_cast<float>(std::log(weight)));
  return summary;
}

std::vector<float> novelty(const EntryBlock& block, std::span<const int32_t> pivots) {
  std::vector<float> distance = nearest_pivots(block, unit_keys(block), pivots).cosine;
  for (float& cosine : distance) cosine = 1 - cosine;
  return distance;
}

double entropy_share(std::span<const float> mass) {
  double sum = 0, weighted = 0;
  for (const float m : mass) {
    if (!(m > 0)) continue;
    sum += m;
    weighted += m * std::log(static_cast<double>(m));
  }
  if (mass.size() < 2 || !(sum > 0)) return 0;
  return (std::log(sum) - weighted / sum) / std::log(static_cast<double>(mass.size()));
}

}  // namespace smartkv
