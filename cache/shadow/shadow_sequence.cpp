#include "cache/shadow/shadow_sequence.h"

#include <cmath>

namespace smartkv {

ShadowSequence::ShadowSequence(const PolicyContext& context, int64_t stride, int64_t prompt_tokens,
                               std::unique_ptr<SequenceCache> compressed, std::unique_ptr<SequenceCache> full,
                               std::shared_ptr<const DriftWatch> watch)
    : ForwardingCache({compressed.get(), full.get()}),
      context_(context),
      shape_(context.shape),
      state_(context.pool, state_bytes(context.shape)),
      stride_(stride),
      prompt_tokens_(prompt_tokens),
      compressed_(std::move(compressed)),
      full_(std::move(full)),
      watch_(std::move(watch)),
      drift_(static_cast<size_t>(shape_.n_layers)) {}

ShadowSampling ShadowSequence::sampling() const {
  return {stride_, std::max<int64_t>(0, prompt_tokens_ - kernels::kPageTokens)};
}

int64_t ShadowSequence::state_bytes(const CacheShape& shape) {
  return shape.n_layers * static_cast<int64_t>(sizeof(LayerDrift));
}

TokenRange ShadowSequence::probes(int64_t n) const {
  return cover(compressed_->probes(n), sampling().within(tokens(), tokens() + n));
}

void ShadowSequence::observe(int64_t layer, const Probe& probe) {
  if (sampling().contains(probe.position)) {
    const auto n_heads = static_cast<int64_t>(probe.q.size()) / shape_.head_dim;
    const kernels::AttentionShape shape{.n_heads = n_heads,
                                        .n_kv_heads = shape_.n_kv_heads,
                                        .head_dim = shape_.head_dim,
                                        .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                                        .type = shape_.type,
                                        .soft_cap = context_.soft_cap,
                                        .sinks = context_.sinks ? context_.sinks(layer) : nullptr};
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

LayerDrift ShadowSequence::all_layers() const {
  LayerDrift all;
  for (const LayerDrift& layer : drift_) all += layer;
  return all;
}

std::optional<bool> ShadowSequence::breaks() const {
  const LayerDrift all = all_layers();
  const int64_t samples = all.samples - at_step_.samples;
  if (!watch_->judges() || samples < kLeastSamples * shape_.n_layers) return std::nullopt;
  return all.error - at_step_.error > watch_->most_drift * static_cast<double>(samples);
}

const KvCachePolicy* ShadowSequence::next() const {
  return steps_ < watch_->safer.size() ? watch_->safer[steps_].get() : nullptr;
}

void ShadowSequence::commit(int64_t n_tokens) {
  const bool at_boundary = n_tokens == next_boundary() && n_tokens == tokens();
  ForwardingCache::commit(n_tokens);
  if (at_boundary && next() != nullptr && breaks().value_or(false)) step_up();
}

int64_t ShadowSequence::max_growth(int64_t n) const {
  const int64_t growth = ForwardingCache::max_growth(n);
  return next() == nullptr ? growth : growth + next()->max_bytes(prompt_tokens_, tokens() + n);
}

void ShadowSequence::step_up() {
  constexpr int64_t kMost = kernels::kPageTokens;  // tokens that are copied at once
  auto safer = next()->new_sequence(prompt_tokens_);
  kernels::KvBackend& backend = *context_.pool->backend();
  const int64_t heads = shape_.n_kv_heads, dim = shape_.head_dim, width = heads * dim, end = full_->tokens();
  std::vector<kernels::KvSegment> pages;
  // By KV head, as they are read, and by token, as they are written.
  std::vector<float> read(static_cast<size_t>(2 * kMost * width)),
      rows(static_cast<size_t>(2 * shape_.n_layers * kMost * width));
  while (safer->tokens() < end) {
    const int64_t first = safer->tokens(), n = std::min({end - first, safer->next_boundary() - first, kMost});
    safer->reserve(n);
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      pages.clear();
      full_->view(layer, 0, &pages);
      std::vector<kernels::PageRead> jobs;
      int64_t at = 0;  // position of the page's first token
      for (const kernels::KvSegment& page : pages) {
        const int64_t from = std::max(first, at), to = std::min(first + n, at + page.tokens);
        if (from < to) {
          float* const k = read.data() + (from - first) * dim;
          jobs.push_back({.page = page,
                          .n_heads = heads,
                          .first = from - at,
                          .n = to - from,
                          .k = k,
                          .v = k + kMost * width,
                          .head_stride = kMost * dim});
        }
        at += page.tokens;
      }
      backend.read(shape_.type, dim, jobs);
      backend.finish();
      float* const k = rows.data() + layer * 2 * kMost * width;
      for (int64_t side = 0; side < 2; ++side) {
        for (int64_t head = 0; head < heads; ++head) {
          for (int64_t t = 0; t < n; ++t) {
            std::copy_n(read.data() + (side * heads + head) * kMost * dim + t * dim, dim,
                        k + side * kMost * width + t * width + head * dim);
          }
        }
      }
      safer->write(layer, {k, k + kMost * width, width, 0, n});
    }
    backend.apply_writes();
    safer->advance(n);
    safer->commit(safer->tokens());
  }
  replace_first(safer.get());
  compressed_ = std::move(safer);
  ++steps_;
  at_step_ = all_layers();
}

std::unique_ptr<SequenceCache> ShadowSequence::fork() const {
  auto fork =
      std::make_unique<ShadowSequence>(context_, stride_, prompt_tokens_, compressed_->fork(), full_->fork(), watch_);
  fork->drift_ = drift_;
  fork->at_step_ = at_step_;
  fork->steps_ = steps_;
  return fork;
}

std::unique_ptr<SequenceCache> ShadowSequence::resume(int64_t prompt_tokens) const {
  if (steps_ > 0) return nullptr;
  std::unique_ptr<SequenceCache> compressed = compressed_->resume(prompt_tokens), full = full_->resume(prompt_tokens);
  if (compressed == nullptr || full == nullptr) return nullptr;
  return std::make_unique<ShadowSequence>(context_, stride_, prompt_tokens, std::move(compressed), std::move(full),
                                          watch_);
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
  const LayerDrift all = all_layers();
  for (size_t layer = 0; layer < drift_.size(); ++layer) {
    const LayerDrift& one = drift_[layer];
    if (one.samples == 0) continue;
    details["drift_l2_layer_" + std::to_string(layer)] = one.error / static_cast<double>(one.samples);
  }
  if (all.samples > 0) {
    details["drift_l2_mean"] = all.error / static_cast<double>(all.samples);
    details["drift_l2_max"] = all.error_max;
  }
  if (all.sets > 0) details["drift_jaccard_mean"] = all.jaccard / static_cast<double>(all.sets);
  if (const std::optional<bool> broken = breaks(); broken || steps_ > 0) {
    details["promise_judged"] = 1;
    details["promise_broken"] = steps_ > 0 || broken.value_or(false) ? 1 : 0;
    details["promise_steps"] = static_cast<double>(steps_);
  }
  return details;
}

}  // namespace smartkv
