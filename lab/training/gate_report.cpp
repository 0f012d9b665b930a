#include "lab/training/gate_report.h"

#include <algorithm>

#include "lab/training/gate_fit.h"

namespace smartkv {
namespace {

// Returns the sum of `row`, f32 [n_kv_heads, candidates], without the `kept` entries of highest score in each head,
// averaged over heads.
double outside(const torch::Tensor& row, const torch::Tensor& scores, int64_t kept) {
  const torch::Tensor best = std::get<1>(scores.topk(std::min(kept, row.size(1)), -1, true, false));
  return (row.sum(-1) - row.gather(-1, best).sum(-1)).mean().item<double>();
}

}  // namespace

GateQuality& GateQuality::operator+=(const GateQuality& other) {
  loss += other.loss;
  recall += other.recall;
  specificity += other.specificity;
  lost += other.lost;
  lost_by_norm += other.lost_by_norm;
  lost_by_recency += other.lost_by_recency;
  return *this;
}

GateQuality GateQuality::operator/(double n) const {
  return {loss / n, recall / n, specificity / n, lost / n, lost_by_norm / n, lost_by_recency / n};
}

GateQuality measure_gate(const GateLayer& gate, const LayerLifespans& layer, int64_t sampled_every,
                         const KeepOptions& keep) {
  const int64_t heads = layer.keys.size(0), length = layer.keys.size(1), head_dim = layer.keys.size(2);
  const torch::Tensor keys = layer.keys.to(torch::kFloat32);
  const torch::Tensor scores = apply_gate(gate, keys.view({heads * length, head_dim})).view({heads, length});
  torch::Tensor expiries = torch::empty_like(scores);
  for (int64_t i = 0; i < heads * length; ++i) {
    expiries.data_ptr<float>()[i] = expiry(i % length, scores.const_data_ptr<float>()[i]);
  }
  const torch::Tensor smallness = -keys.norm(2, -1);
  const torch::Tensor recency = torch::arange(length, torch::kFloat32).expand({heads, length});
  const auto evictable = [&](const torch::Tensor& t, int64_t end) { return t.slice(-1, keep.sinks, end); };
  GateQuality quality;

  // Only tokens of the first half count, because enough of their future is known.
  const int64_t middle = length / 2;
  const torch::Tensor known = evictable(scores, middle), lifespans = evictable(layer.lifespans, middle);
  const torch::Tensor of_constant = gate_deviance(constant_score(lifespans), lifespans);
  quality.loss = (gate_deviance(known, lifespans) / (of_constant + 1e-6)).item<double>();
  const auto n_kept = static_cast<int64_t>(keep.share * static_cast<double>(known.size(1)));
  const torch::Tensor kept =
      torch::zeros_like(known, torch::kBool).scatter_(-1, std::get<1>(known.topk(n_kept, -1)), true);
  const torch::Tensor lasting = lifespans > length / 4;
  const auto ratio = [](const torch::Tensor& part, const torch::Tensor& whole) {
    return part.sum().item<double>() / std::max(1.0, whole.sum().item<double>());
  };
  quality.recall = ratio(kept & lasting, lasting);
  quality.specificity = ratio(~kept & ~lasting, ~lasting);

  const int64_t budget = static_cast<int64_t>(keep.share * static_cast<double>(length)) - keep.sinks - keep.window;
  int64_t queries = 0;
  for (int64_t query = sampled_every - 1; query < length; query += sampled_every) {
    if (query < middle) continue;
    const int64_t end = query - keep.window + 1;
    const torch::Tensor row = evictable(layer.sampled.select(1, query / sampled_every), end);
    quality.lost += outside(row, evictable(expiries, end), budget);
    quality.lost_by_norm += outside(row, evictable(smallness, end), budget);
    quality.lost_by_recency += outside(row, evictable(recency, end), budget);
    ++queries;
  }
  quality.lost /= static_cast<double>(queries);
  quality.lost_by_norm /= static_cast<double>(queries);
  quality.lost_by_recency /= static_cast<double>(queries);
  return quality;
}

}  // namespace smartkv
