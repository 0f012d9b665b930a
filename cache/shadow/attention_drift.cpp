#include "cache/shadow/attention_drift.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::KvSegment;

std::vector<KvSegment> view_of(const SequenceCache& cache, int64_t layer, int64_t position) {
  std::vector<KvSegment> segments;
  cache.view(layer, position + 1 - cache.tokens(), &segments);
  return segments;
}

// Returns the positions of the tokens that a query at `position` sees in a KV head, in the view's order.
std::vector<int64_t> visible_positions(const SequenceCache& cache, int64_t layer, int64_t head, int64_t position) {
  std::vector<int64_t> positions = cache.positions(layer, head);
  for (int64_t next = cache.tokens(); next <= position; ++next) positions.push_back(next);
  return positions;
}

// Returns the indices of the largest values, at most kMostAttended, in rising order.
std::vector<int64_t> most_attended(std::span<const float> mass) {
  std::vector<int64_t> indices(mass.size());
  std::iota(indices.begin(), indices.end(), 0);
  const auto n = std::min(kMostAttended, static_cast<int64_t>(mass.size()));
  std::partial_sort(indices.begin(), indices.begin() + n, indices.end(), [&](int64_t a, int64_t b) {
    const float x = mass[static_cast<size_t>(a)], y = mass[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  indices.resize(static_cast<size_t>(n));
  std::sort(indices.begin(), indices.end());
  return indices;
}

// For each of `slots` of a quantized page, returns the nearest slot of the dense page that holds the same tokens.
std::vector<int64_t> nearest_slots(kernels::PageOps& pages, const kernels::AttentionShape& shape, const KvSegment& page,
                                   const KvSegment& dense, int64_t head, std::span<const int64_t> slots) {
  const int64_t dim = shape.head_dim;
  const auto size = static_cast<size_t>(kPageTokens * dim);
  std::vector<float> k(size), v(size), dense_k(size), dense_v(size);
  const kernels::PageRead jobs[] = {{page, head, 1, 0, kPageTokens, k.data(), v.data()},
                                    {dense, head, 1, 0, kPageTokens, dense_k.data(), dense_v.data()}};
  pages.read(shape.type, dim, jobs);
  pages.finish();
  const auto distance = [dim](const float* a, const float* b) {
    std::array<float, 16> sums{};  // head_dim is a multiple of 16.
    for (int64_t d = 0; d < dim; d += 16) {
      for (size_t i = 0; i < 16; ++i) sums[i] += (a[d + i] - b[d + i]) * (a[d + i] - b[d + i]);
    }
    return std::accumulate(sums.begin(), sums.end(), 0.0f);
  };
  std::vector<int64_t> nearest;
  for (const int64_t slot : slots) {
    int64_t best = 0;
    float least = std::numeric_limits<float>::infinity();
    for (int64_t other = 0; other < kPageTokens; ++other) {
      const float found = distance(k.data() + slot * dim, dense_k.data() + other * dim) +
                          distance(v.data() + slot * dim, dense_v.data() + other * dim);
      if (found < least) {
        best = other;
        least = found;
      }
    }
    nearest.push_back(best);
  }
  return nearest;
}

// `indices` (sorted) point into a view of all tokens. Turns them into positions: quantized pages may have an order of
// their own.
void restore_order(kernels::PageOps& pages, const kernels::AttentionShape& shape, std::span<const KvSegment> view,
                   std::span<const KvSegment> full, int64_t head, std::span<int64_t> indices) {
  int64_t first = 0;
  auto at = indices.begin();
  for (const KvSegment& segment : view) {
    const auto end = std::lower_bound(at, indices.end(), first + segment.tokens);
    if (segment.format == KvSegment::Format::kQuantized && at != end) {
      std::vector<int64_t> slots(at, end);
      for (int64_t& slot : slots) slot -= first;
      slots = nearest_slots(pages, shape, segment, full[static_cast<size_t>(first / kPageTokens)], head, slots);
      std::transform(slots.begin(), slots.end(), at, [first](int64_t slot) { return first + slot; });
    }
    at = end;
    first += segment.tokens;
  }
}

double jaccard(const std::vector<int64_t>& a, std::vector<int64_t> b) {
  std::sort(b.begin(), b.end());
  b.erase(std::unique(b.begin(), b.end()), b.end());
  std::vector<int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size() + b.size() - both.size());
}

// Returns the maximum, or NaN if one of them is NaN.
double larger(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

}  // namespace

TokenRange ShadowSampling::within(int64_t begin, int64_t end) const {
  const int64_t from = std::max(begin, first);
  return {(from + stride) / stride * stride - 1, end / stride * stride};
}

void LayerDrift::add(kernels::PageOps& pages, const kernels::AttentionShape& shape, int64_t layer, int64_t position,
                     const QueryAttention& compressed, const QueryAttention& full) {
  const int64_t all = position + 1, seen = static_cast<int64_t>(compressed.mass.size()) / shape.n_kv_heads;
  const std::vector<KvSegment> view = view_of(compressed.cache, layer, position),
                               full_view = view_of(full.cache, layer, position);
  for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const std::vector<int64_t> positions = visible_positions(compressed.cache, layer, head, position);
    const auto of_head = [&](std::span<const float> values, int64_t n) {
      return values.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
    };
    std::vector<int64_t> most = most_attended(of_head(compressed.mass, seen));
    if (seen == all) restore_order(pages, shape, view, full_view, head, most);
    for (int64_t& index : most) index = positions[static_cast<size_t>(index)];
    std::erase(most, SequenceCache::kOtherHead);
    jaccard += smartkv::jaccard(most_attended(of_head(full.mass, all)), std::move(most));
    ++sets;
  }
  double difference = 0, norm = 0;
  for (size_t i = 0; i < full.output.size(); ++i) {
    difference += std::pow(static_cast<double>(compressed.output[i]) - static_cast<double>(full.output[i]), 2);
    norm += std::pow(static_cast<double>(full.output[i]), 2);
  }
  const double relative = difference == 0 ? 0 : std::sqrt(difference / norm);
  error += relative;
  error_max = larger(error_max, relative);
  ++samples;
}

LayerDrift& LayerDrift::operator+=(const LayerDrift& other) {
  samples += other.samples;
  error += other.error;
  error_max = larger(error_max, other.error_max);
  sets += other.sets;
  jaccard += other.jaccard;
  return *this;
}

std::vector<float> query_output(kernels::KvAttention& backend, const kernels::AttentionShape& shape,
                                const SequenceCache& cache, int64_t layer, const Probe& query) {
  const std::vector<KvSegment> segments = view_of(cache, layer, query.position);
  const bool bf16 = shape.type == kernels::KvType::kBf16;
  std::vector<float> output(query.q.size());
  std::vector<uint16_t> bits(bf16 ? query.q.size() : 0);
  void* out = bf16 ? static_cast<void*>(bits.data()) : static_cast<void*>(output.data());
  const kernels::AttentionTask task{query.q.data(), static_cast<int64_t>(query.q.size()), 1, segments, out};
  backend.attention(shape, {&task, 1});
  for (size_t i = 0; i < bits.size(); ++i) output[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
  return output;
}

std::vector<float> query_mass(kernels::KvAttention& backend, const kernels::AttentionShape& shape,
                              const SequenceCache& cache, int64_t layer, const Probe& query) {
  const std::vector<KvSegment> segments = view_of(cache, layer, query.position);
  kernels::AttentionMassTask task{query.q.data(), static_cast<int64_t>(query.q.size()), 1, segments, nullptr};
  std::vector<float> mass(static_cast<size_t>(kernels::attention_mass_floats(shape, task)));
  task.mass = mass.data();
  backend.attention_mass(shape, {&task, 1});
  return mass;
}

}  // namespace smartkv
