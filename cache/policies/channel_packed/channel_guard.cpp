#include "cache/policies/channel_packed/channel_guard.h"

namespace smartkv {

using kernels::kPageTokens;

void ChannelSeen::add_queries(const CacheShape& shape) {
  const int64_t dim = shape.head_dim;
  q2.assign(static_cast<size_t>(shape.n_kv_heads * dim), 0.0);
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const SampledQueries& of = queries[static_cast<size_t>(head)];
    asked = asked || of.n > 0;
    for (int64_t at = 0; at < of.n * dim; ++at) {
      const auto value = static_cast<double>(of.q[static_cast<size_t>(at)]);
      q2[static_cast<size_t>(head * dim + at % dim)] += value * value / static_cast<double>(of.n);
    }
  }
}

void share(const PolicyContext& context, std::vector<ChannelSeen>* seen) {
  std::vector<double> asked;
  for (const ChannelSeen& of : *seen) asked.push_back(of.asked ? 1 : 0);
  context.sum(asked);
  for (size_t layer = 0; layer < asked.size(); ++layer) (*seen)[layer].asked = asked[layer] > 0;
}

void average(bool known, double decay, const std::vector<double>& what, std::vector<float>* mean) {
  mean->resize(what.size());
  for (size_t i = 0; i < what.size(); ++i) {
    (*mean)[i] = static_cast<float>(known ? decay * (*mean)[i] + (1 - decay) * what[i] : what[i]);
  }
}

void share(const PolicyContext& context, std::vector<ChannelFinding>* findings) {
  if (context.ranks() == 1) return;
  std::vector<double> own;
  for (const ChannelFinding& of : *findings) {
    const Fidelity& f = of.fidelity;
    own.insert(own.end(), {of.retained, static_cast<double>(f.queries), f.overlap, f.margin_drift, f.kl});
  }
  const std::vector<std::vector<double>> told = context.gather(std::move(own));
  for (size_t layer = 0; layer < findings->size(); ++layer) {
    ChannelFinding& of = (*findings)[layer];
    of.fidelity = {};
    for (const std::vector<double>& of_rank : told) {
      const double* values = &of_rank.at(5 * layer + 4) - 4;
      of.retained = std::min(of.retained, values[0]);
      of.fidelity += {static_cast<int64_t>(values[1]), values[2], values[3], values[4]};
    }
  }
}

CheckedKeys checked_keys(const StageView& view, int64_t n_pages) {
  return {std::min(n_pages, CheckedKeys::kMostPages), std::min(kPageTokens, view.tokens - view.tail_first)};
}

void add_details(std::span<const Fidelity> layers, std::map<std::string, double>* details) {
  double overlap = 0, margin = 0, kl = 0, checked = 0;
  for (const Fidelity& fidelity : layers) {
    if (fidelity.queries == 0) continue;
    overlap += fidelity.overlap;
    margin += fidelity.margin_drift;
    kl += fidelity.kl;
    ++checked;
  }
  if (checked == 0) return;
  (*details)["channel_overlap"] = overlap / checked;
  (*details)["channel_margin_drift"] = margin / checked;
  (*details)["channel_kl"] = kl / checked;
}

}  // namespace smartkv
