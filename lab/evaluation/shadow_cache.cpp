#include "lab/evaluation/shadow_cache.h"

namespace smartkv {

namespace {

std::vector<SequenceCache*> pointers(SequenceCache* full,
                                     const std::vector<std::unique_ptr<SequenceCache>>& compressed) {
  std::vector<SequenceCache*> all = {full};
  for (const auto& cache : compressed) all.push_back(cache.get());
  return all;
}

}  // namespace

ShadowCache::ShadowCache(const ShadowOptions& options, kernels::KvBackend& backend, std::unique_ptr<SequenceCache> full,
                         std::vector<std::unique_ptr<SequenceCache>> compressed,
                         std::vector<std::vector<LayerDrift>>* drift)
    : ForwardingCache(pointers(full.get(), compressed)),
      options_(options),
      backend_(backend),
      full_(std::move(full)),
      compressed_(std::move(compressed)),
      drift_(drift) {}

void ShadowCache::reserve(int64_t n) {
  pass_tokens_ = n;
  ForwardingCache::reserve(n);
}

// Returns a range that covers the sampled positions and the probes of every compressed cache.
TokenRange ShadowCache::probes(int64_t n) const {
  TokenRange range = options_.sampling.within(tokens(), tokens() + n);
  for (const auto& cache : compressed_) range = cover(range, cache->probes(n));
  return range;
}

void ShadowCache::observe(int64_t layer, const Probe& probe) {
  const bool sample = options_.sampling.contains(probe.position);
  kernels::AttentionShape shape = options_.shape;
  if (options_.sinks) shape.sinks = options_.sinks(layer);
  std::vector<float> full_output;
  if (sample) full_output = query_output(backend_, shape, *full_, layer, probe);
  for (size_t i = 0; i < compressed_.size(); ++i) {
    SequenceCache& cache = *compressed_[i];
    const TokenRange wanted = cache.probes(pass_tokens_);
    const bool shown = probe.position >= wanted.first && probe.position < wanted.end;
    if (!sample && !shown) continue;
    const std::vector<float> mass = query_mass(backend_, shape, cache, layer, probe);
    if (sample) {
      const std::vector<float> output = query_output(backend_, shape, cache, layer, probe);
      (*drift_)[i][static_cast<size_t>(layer)].add(backend_, shape, layer, probe.position, {cache, output, mass},
                                                   {*full_, full_output, probe.mass});
    }
    if (shown) cache.observe(layer, {probe.position, probe.q, mass});
  }
}

std::unique_ptr<SequenceCache> ShadowCache::resume(int64_t prompt_tokens) const {
  std::unique_ptr<SequenceCache> full = full_->resume(prompt_tokens);
  bool all = full != nullptr;
  std::vector<std::unique_ptr<SequenceCache>> compressed;
  for (const auto& cache : compressed_) all = compressed.emplace_back(cache->resume(prompt_tokens)) != nullptr && all;
  if (!all) return nullptr;
  return std::make_unique<ShadowCache>(options_, backend_, std::move(full), std::move(compressed), drift_);
}

std::unique_ptr<SequenceCache> ShadowCache::fork() const {
  std::vector<std::unique_ptr<SequenceCache>> compressed;
  for (const auto& cache : compressed_) compressed.push_back(cache->fork());
  return std::make_unique<ShadowCache>(options_, backend_, full_->fork(), std::move(compressed), drift_);
}

}  // namespace smartkv
