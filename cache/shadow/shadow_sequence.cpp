#include "cache/shadow/shadow_sequence.h"

#include <cmath>

namespace smartkv {

ShadowSequence::ShadowSequence(const PolicyContext& context, const ShadowSampling& sampling,
                               std::unique_ptr<SequenceCache> compressed, std::unique_ptr<SequenceCache> full)
    : ForwardingCache({compressed.get(), full.get()}),
      context_(context),
      shape_(context.shape),
      state_(context.pool, state_bytes(context.shape)),
      sampling_(sampling),
      compressed_(std::move(compressed)),
      full_(std::move(full)),
      drift_(static_cast<size_t>(shape_.n_layers)) {}

ShadowSampling ShadowSequence::sampling(int64_t stride, int64_t prompt_tokens) {
  return {stride, std::max<int64_t>(0, prompt_tokens - kernels::kPageTokens)};
}

int64_t ShadowSequence::state_bytes(const CacheShape& shape) {
  return shape.n_layers * static_cast<int64_t>(sizeof(LayerDrift));
}

TokenRange ShadowSequence::probes(int64_t n) const {
  return cover(compressed_->probes(n), sampling_.within(tokens(), tokens() + n));
}

void ShadowSequence::observe(int64_t layer, const Probe& probe) {
  if (sampling_.contains(probe.position)) {
    const auto n_heads = static_cast<int64_t>(probe.q.size()) / shape_.head_dim;
    const kernels::AttentionShape shape{n_heads, shape_.n_kv_heads, shape_.head_dim,
                                        1.0f / std::sqrt(static_cast<float>(shape_.head_dim)), shape_.type};
    kernels::KvBackend& backend = *context_.pool->backend();
    const std::vector<float> output = query_output(backend, shape, *compressed_, layer, probe),
                             full_output = query_output(backend, shape, *full_, layer, probe),
                             full_mass = query_mass(backend, shape, *full_, layer, probe);
    drift_[static_cast<size_t>(layer)].add(backend, shape, layer, probe.position, {*compressed_, output, probe.mass},
                                           {*full_, full_output, full_mass});
  }
  // The compressed cache's probes depend on positions only, so they are the same in a pass that ends here.
  const TokenRange own = compressed_->probes(probe.position + 1 - tokens());
  if (probe.position >= own.first && probe.position < own.end) compressed_->observe(layer, probe);
}

std::unique_ptr<SequenceCache> ShadowSequence::fork() const {
  auto fork = std::make_unique<ShadowSequence>(context_, sampling_, compressed_->fork(), full_->fork());
  fork->drift_ = drift_;
  return fork;
}

std::unique_ptr<SequenceCache> ShadowSequence::resume(int64_t prompt_tokens) const {
  std::unique_ptr<SequenceCache> compressed = compressed_->resume(prompt_tokens), full = full_->resume(prompt_tokens);
  if (compressed == nullptr || full == nullptr) return nullptr;
  return std::make_unique<ShadowSequence>(context_, sampling(sampling_.stride, prompt_tokens), std::move(compressed),
                                          std::move(full));
}

CacheStats ShadowSequence::stats() const {
  CacheStats stats = compressed_->stats();
  stats.bytes += shadow_bytes();
  stats.shared_bytes += full_->stats().shared_bytes;
  return stats;
}

std::map<std::string, double> ShadowSequence::details() const {
  std::map<std::string, double> details = compressed_->details();
  details["shadow_bytes"] = static_cast<double>(shadow_bytes());
  details["drift_samples"] = static_cast<double>(drift_[0].samples);
  LayerDrift all;
  for (size_t layer = 0; layer < drift_.size(); ++layer) {
    const LayerDrift& one = drift_[layer];
    all += one;
    if (one.samples == 0) continue;
    details["drift_l2_layer_" + std::to_string(layer)] = one.error / static_cast<double>(one.samples);
  }
  if (all.samples > 0) {
    details["drift_l2_mean"] = all.error / static_cast<double>(all.samples);
    details["drift_l2_max"] = all.error_max;
  }
  if (all.sets > 0) details["drift_jaccard_mean"] = all.jaccard / static_cast<double>(all.sets);
  return details;
}

}  // namespace smartkv
