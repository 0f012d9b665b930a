#include "cache/summaries/probe_queries.h"

#include <cmath>

#include "kernels/rope.h"

namespace smartkv {

void ProbeQueries::add(const CacheShape& shape, const StoreProbe& probe) {
  const int64_t seen = std::min(kSeen, probe.n_tail);
  positions_.push_back(probe.position);
  seen_.push_back(seen);
  const auto group = static_cast<int64_t>(probe.q.size()) / (shape.n_kv_heads * shape.head_dim);
  const int64_t kept = std::min(group, kMostGroup);
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (int64_t i = 0; i < kept; ++i) {
      const float* from = probe.q.data() + (head * group + i * group / kept) * shape.head_dim;
      q_.insert(q_.end(), from, from + shape.head_dim);
    }
  }
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const float* end = probe.mass + head * probe.stride + probe.tail + probe.n_tail;
    mass_.insert(mass_.end(), static_cast<size_t>(kSeen - seen), 0.0f);
    mass_.insert(mass_.end(), end - seen, end);
  }
}

void ProbeQueries::clear() { *this = {}; }

void ProbeQueries::save(StateWriter* out) const { out->fields(positions_, seen_, q_, mass_); }

void ProbeQueries::load(const CacheShape& shape, StateReader* in) {
  in->fields(positions_, seen_, q_, mass_);
  const auto probes = static_cast<int64_t>(positions_.size()), values = static_cast<int64_t>(q_.size());
  const int64_t width = shape.n_kv_heads * shape.head_dim;
  in->expect(static_cast<int64_t>(seen_.size()) == probes &&
                 std::all_of(seen_.begin(), seen_.end(), [](int64_t seen) { return seen >= 0 && seen <= kSeen; }),
             "a token count for each probe query");
  in->expect(probes == 0 ? values == 0 : values % (probes * width) == 0 && values <= probes * width * kMostGroup,
             "queries");
  in->expect(static_cast<int64_t>(mass_.size()) == probes * shape.n_kv_heads * kSeen, "a mass for each probe query");
}

int64_t ProbeQueries::bytes() const {
  return static_cast<int64_t>((q_.size() + mass_.size()) * sizeof(float) +
                              (positions_.size() + seen_.size()) * sizeof(int64_t));
}

int64_t ProbeQueries::most_probe_bytes(const CacheShape& shape) {
  return shape.n_kv_heads * (kMostGroup * shape.head_dim + kSeen) * static_cast<int64_t>(sizeof(float)) +
         2 * static_cast<int64_t>(sizeof(int64_t));
}

std::vector<SampledQueries> ProbeQueries::sampled(const PolicyContext& context, const DenseLayer& tail,
                                                  const std::vector<int64_t>& shifts) const {
  const CacheShape& shape = context.shape;
  const int64_t dim = shape.head_dim, heads = shape.n_kv_heads, probes = static_cast<int64_t>(positions_.size());
  std::vector<SampledQueries> queries(static_cast<size_t>(heads));
  if (probes == 0) return queries;
  // By KV head and probe: the probe's queries times the keys of the last tokens that it saw.
  const int64_t width = static_cast<int64_t>(q_.size()) / probes, group = width / (heads * dim);
  std::vector<float> products(static_cast<size_t>(heads * probes * group * kSeen));
  std::vector<kernels::KeyProducts> jobs;
  for (int64_t i = 0; i < heads * probes; ++i) {
    const int64_t head = i / probes, p = i % probes, seen = seen_[static_cast<size_t>(p)];
    const int64_t end = positions_[static_cast<size_t>(p)] + 1 - tail.first();
    for (int64_t at = end - seen, n = 0; at < end; at += n) {  // In one page or two.
      const int64_t page = at / kernels::kPageTokens, slot = at % kernels::kPageTokens;
      n = std::min(end - at, kernels::kPageTokens - slot);
      jobs.push_back({.page = tail.segment(page, kernels::kPageTokens),
                      .head = head,
                      .first = slot,
                      .n = n,
                      .q = q_.data() + p * width + head * group * dim,
                      .n_queries = group,
                      .out = products.data() + i * group * kSeen + at - (end - seen),
                      .out_stride = kSeen});
    }
  }
  context.pool->backend()->multiply_keys(shape.type, dim, jobs);
  context.pool->backend()->finish();
  for (int64_t head = 0; head < heads; ++head) {
    queries[static_cast<size_t>(head)] =
        sampled(context, products.data() + head * probes * group * kSeen, head, shifts);
  }
  return queries;
}

SampledQueries ProbeQueries::sampled(const PolicyContext& context, const float* products, int64_t head,
                                     const std::vector<int64_t>& shifts) const {
  const CacheShape& shape = context.shape;
  const int64_t dim = shape.head_dim, heads = shape.n_kv_heads, probes = static_cast<int64_t>(positions_.size());
  const int64_t width = static_cast<int64_t>(q_.size()) / probes, group = width / (heads * dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  SampledQueries queries;
  std::vector<float> here(static_cast<size_t>(dim)), there(here.size());
  for (int64_t p = 0; p < probes; ++p) {
    const int64_t position = positions_[static_cast<size_t>(p)], seen = seen_[static_cast<size_t>(p)];
    const float* mass = mass_.data() + (p * heads + head) * kSeen;
    std::vector<float> log_norm(static_cast<size_t>(group), -INFINITY);
    const float* q = q_.data() + p * width + head * group * dim;
    // The mass of a token is the largest share that a query of the group gives it. So score - log mass is at most the
    // log of each query's denominator, and equal to it for the query that gives that share.
    for (int64_t i = 0; i < seen; ++i) {
      const float share = mass[kSeen - seen + i];
      if (!(share > 0)) continue;
      for (int64_t g = 0; g < group; ++g) {
        const float score = scale * products[(p * group + g) * kSeen + i];
        log_norm[static_cast<size_t>(g)] = std::max(log_norm[static_cast<size_t>(g)], score - std::log(share));
      }
    }
    const auto finite = [&](int64_t g) { return std::isfinite(log_norm[static_cast<size_t>(g)]); };
    if (!shifts.empty()) context.rope(position, here.data(), here.data() + dim / 2);
    for (size_t s = 0; s <= shifts.size(); ++s) {
      if (s > 0) context.rope(position + shifts[s - 1], there.data(), there.data() + dim / 2);
      for (int64_t g = 0; g < group; ++g) {
        if (!finite(g)) continue;
        const size_t at = queries.q.size();
        queries.q.insert(queries.q.end(), q + g * dim, q + (g + 1) * dim);
        float* row = queries.q.data() + at;
        if (s > 0) {
          kernels::unrotate(here.data(), dim, row);
          kernels::rotate(there.data(), dim, row);
        }
        for (int64_t d = 0; d < dim; ++d) row[d] *= scale;
        queries.log_norm.push_back(log_norm[static_cast<size_t>(g)]);
        ++queries.n;
      }
    }
  }
  return queries;
}

}  // namespace smartkv
