#include "engine/evaluation/shadow_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cache/eviction/eviction_sequence.h"

namespace smartkv {
namespace {

int64_t tokens_of(std::span<const kernels::KvSegment> segments) {
  int64_t tokens = 0;
  for (const kernels::KvSegment& segment : segments) tokens += segment.tokens;
  return tokens;
}

// The positions of the `seen` tokens that a query at `position` sees in a KV head, in the view's order; empty: unknown.
std::vector<int64_t> visible_positions(const SequenceCache& cache, int64_t layer, int64_t head, int64_t position,
                                       int64_t seen) {
  std::vector<int64_t> positions;
  if (const auto* eviction = dynamic_cast<const EvictionSequence*>(&cache)) {
    for (const int32_t slot : eviction->slot_positions(layer, head)) positions.push_back(slot);
  } else if (seen != position + 1) {
    return {};
  }
  const auto tail = seen - static_cast<int64_t>(positions.size());
  positions.resize(static_cast<size_t>(seen));
  std::iota(positions.end() - tail, positions.end(), position + 1 - tail);
  return positions;
}

// The indices of the largest values, at most kMostAttended, sorted.
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

double jaccard(const std::vector<int64_t>& a, std::vector<int64_t> b) {
  std::sort(b.begin(), b.end());
  std::vector<int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size() + b.size() - both.size());
}

}  // namespace

ShadowCache::ShadowCache(const ShadowOptions& options, ThreadPool& threads, std::unique_ptr<SequenceCache> full,
                         std::vector<std::unique_ptr<SequenceCache>> compressed,
                         std::vector<std::vector<LayerDrift>>* drift)
    : options_(options), threads_(threads), full_(std::move(full)), compressed_(std::move(compressed)), drift_(drift) {}

void ShadowCache::reserve(int64_t n) {
  pass_tokens_ = n;
  full_->reserve(n);
  for (const auto& cache : compressed_) cache->reserve(n);
}

void ShadowCache::write(int64_t layer, const KvRows& rows) {
  full_->write(layer, rows);
  for (const auto& cache : compressed_) cache->write(layer, rows);
}

void ShadowCache::advance(int64_t n) {
  full_->advance(n);
  for (const auto& cache : compressed_) cache->advance(n);
}

void ShadowCache::truncate(int64_t n_tokens) {
  full_->truncate(n_tokens);
  for (const auto& cache : compressed_) cache->truncate(n_tokens);
}

void ShadowCache::commit(int64_t n_tokens) {
  full_->commit(n_tokens);
  for (const auto& cache : compressed_) cache->commit(n_tokens);
}

int64_t ShadowCache::next_boundary() const {
  int64_t boundary = full_->next_boundary();
  for (const auto& cache : compressed_) boundary = std::min(boundary, cache->next_boundary());
  return boundary;
}

// A range that holds the samples and what every compressed cache wants.
TokenRange ShadowCache::probes(int64_t n) const {
  TokenRange range;
  const auto include = [&](const TokenRange& other) {
    if (other.empty()) return;
    range = range.empty() ? other : TokenRange{std::min(range.first, other.first), std::max(range.end, other.end)};
  };
  for (int64_t position = tokens(); position < tokens() + n; ++position) {
    if (sampled(position)) include({position, position + 1});
  }
  for (const auto& cache : compressed_) include(cache->probes(n));
  return range;
}

void ShadowCache::observe(int64_t layer, const Probe& probe) {
  const bool sample = sampled(probe.position);
  if (sample) attend(*full_, layer, probe, &full_output_);
  for (size_t i = 0; i < compressed_.size(); ++i) {
    SequenceCache& cache = *compressed_[i];
    const TokenRange wanted = cache.probes(pass_tokens_);
    const bool shown = probe.position >= wanted.first && probe.position < wanted.end;
    if (!sample && !shown) continue;
    segments_.clear();
    cache.view(layer, probe.position + 1 - tokens(), &segments_);
    kernels::AttentionMassTask task{probe.q.data(), static_cast<int64_t>(probe.q.size()), 1, segments_, nullptr};
    mass_.resize(static_cast<size_t>(kernels::attention_mass_floats(options_.shape, task)));
    task.mass = mass_.data();
    kernels::attention_mass(threads_, options_.shape, {&task, 1}, scratch_);
    if (sample) measure(cache, layer, probe, mass_, &(*drift_)[i][static_cast<size_t>(layer)]);
    if (shown) cache.observe(layer, {probe.position, probe.q, mass_});
  }
}

void ShadowCache::attend(const SequenceCache& cache, int64_t layer, const Probe& probe, std::vector<float>* output) {
  segments_.clear();
  cache.view(layer, probe.position + 1 - tokens(), &segments_);
  const bool bf16 = options_.shape.type == kernels::KvType::kBf16;
  output->resize(probe.q.size());
  bf16_output_.resize(probe.q.size());
  void* out = bf16 ? static_cast<void*>(bf16_output_.data()) : static_cast<void*>(output->data());
  const kernels::AttentionTask task{probe.q.data(), static_cast<int64_t>(probe.q.size()), 1, segments_, out};
  kernels::attention(threads_, options_.shape, {&task, 1}, scratch_);
  if (!bf16) return;
  for (size_t i = 0; i < output->size(); ++i)
    (*output)[i] = std::bit_cast<float>(static_cast<uint32_t>(bf16_output_[i]) << 16);
}

void ShadowCache::measure(const SequenceCache& cache, int64_t layer, const Probe& probe, std::span<const float> mass,
                          LayerDrift* drift) {
  const int64_t seen = tokens_of(segments_), all = probe.position + 1;
  for (int64_t head = 0; head < options_.shape.n_kv_heads; ++head) {
    const std::vector<int64_t> positions = visible_positions(cache, layer, head, probe.position, seen);
    if (positions.empty()) continue;
    const auto of_head = [&](std::span<const float> values, int64_t n) {
      return values.subspan(static_cast<size_t>(head * n), static_cast<size_t>(n));
    };
    std::vector<int64_t> most = most_attended(of_head(mass, seen));
    for (int64_t& index : most) index = positions[static_cast<size_t>(index)];
    drift->jaccard += jaccard(most_attended(of_head(probe.mass, all)), std::move(most));
    ++drift->sets;
  }
  attend(cache, layer, probe, &output_);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < output_.size(); ++i) {
    difference += std::pow(static_cast<double>(output_[i]) - static_cast<double>(full_output_[i]), 2);
    norm += std::pow(static_cast<double>(full_output_[i]), 2);
  }
  const double error = difference == 0 ? 0 : std::sqrt(difference / norm);
  drift->error += error;
  // A NaN is not lost in the maximum.
  drift->error_max = error <= drift->error_max ? drift->error_max : error;
  ++drift->samples;
}

std::unique_ptr<SequenceCache> ShadowCache::fork() const {
  std::vector<std::unique_ptr<SequenceCache>> compressed;
  for (const auto& cache : compressed_) compressed.push_back(cache->fork());
  return std::make_unique<ShadowCache>(options_, threads_, full_->fork(), std::move(compressed), drift_);
}

}  // namespace smartkv
