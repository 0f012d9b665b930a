#include "cache/policies/channel_packed/fidelity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cache/state_io.h"

namespace smartkv {
namespace {

double log_sum_exp(std::span<const float> scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - most);
  return most + std::log(sum);
}

// Returns the entries with the `top` largest scores, at least two, in order of index. Sets *margin to the distance
// between the two best scores.
std::vector<size_t> best(std::span<const float> scores, int64_t top, double* margin) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto n = std::max<std::ptrdiff_t>(
      2, std::min(static_cast<std::ptrdiff_t>(top), static_cast<std::ptrdiff_t>(order.size())));
  std::partial_sort(order.begin(), order.begin() + n, order.end(),
                    [&](size_t a, size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  *margin = static_cast<double>(scores[order[0]]) - scores[order[1]];
  order.resize(static_cast<size_t>(n));
  std::sort(order.begin(), order.end());
  return order;
}

bool finite(std::span<const float> scores) {
  return std::all_of(scores.begin(), scores.end(), [](float score) { return std::isfinite(score); });
}

}  // namespace

bool Fidelity::passes(const FidelityLimits& limits) const {
  return queries > 0 && overlap >= limits.least_overlap && margin_drift <= limits.most_margin_drift &&
         kl <= limits.most_kl;
}

Fidelity& Fidelity::operator+=(const Fidelity& other) {
  if (other.queries == 0) return *this;
  queries += other.queries;
  const double share = static_cast<double>(other.queries) / static_cast<double>(queries);
  overlap += share * (other.overlap - overlap);
  margin_drift += share * (other.margin_drift - margin_drift);
  kl += share * (other.kl - kl);
  return *this;
}

void Fidelity::save(StateWriter* out) const { out->fields(queries, overlap, margin_drift, kl); }

void Fidelity::load(StateReader* in) { in->fields(queries, overlap, margin_drift, kl); }

void add_fidelity(std::span<const float> full, std::span<const float> packed, int64_t top, Fidelity* fidelity) {
  double overlap = NAN, margin_drift = NAN, kl = NAN;
  if (finite(full) && finite(packed)) {
    double full_margin = 0, packed_margin = 0;
    const std::vector<size_t> a = best(full, top, &full_margin), b = best(packed, top, &packed_margin);
    std::vector<size_t> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    overlap = static_cast<double>(both.size()) / static_cast<double>(a.size());
    margin_drift = std::abs(full_margin - packed_margin);
    const double full_norm = log_sum_exp(full), packed_norm = log_sum_exp(packed);
    kl = 0;
    for (size_t i = 0; i < full.size(); ++i) {
      const double log_full = full[i] - full_norm, log_packed = packed[i] - packed_norm;
      kl += std::exp(log_full) * (log_full - log_packed);
    }
  }
  const auto n = static_cast<double>(++fidelity->queries);
  fidelity->overlap += (overlap - fidelity->overlap) / n;
  fidelity->margin_drift += (margin_drift - fidelity->margin_drift) / n;
  fidelity->kl += (kl - fidelity->kl) / n;
}

void add_fidelities(std::span<const float> full, std::span<const float> packed, int64_t n, int64_t top,
                    Fidelity* fidelity) {
  const auto row = static_cast<size_t>(n);
  for (size_t at = 0; at < full.size(); at += row) {
    add_fidelity(full.subspan(at, row), packed.subspan(at, row), top, fidelity);
  }
}

}  // namespace smartkv
