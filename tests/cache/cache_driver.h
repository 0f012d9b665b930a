// Runs a sequence cache as a model would, with K, V and queries that are random functions of layer and position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cache/policy.h"
#include "kernels/aligned_buffer.h"
#include "kernels/bf16.h"
#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Width of the hidden states that tests show.
inline constexpr int64_t kTestHiddenSize = 32;

// Returns hidden states of tokens [first, first + n), random functions of layer, position and salt: f32 [n,
// kTestHiddenSize].
inline std::vector<float> random_hidden(int64_t layer, int64_t first, int64_t n, uint32_t salt = 0) {
  std::vector<float> rows;
  for (int64_t position = first; position < first + n; ++position) {
    std::minstd_rand random(static_cast<uint32_t>(1 + layer * 100003 + position * 7) + salt * 7919);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t d = 0; d < kTestHiddenSize; ++d) rows.push_back(uniform(random));
  }
  return rows;
}

// Shows the cache such hidden states of its next n tokens, if it wants them.
inline void show_random_hidden(SequenceCache* cache, const CacheShape& shape, int64_t layer, int64_t n,
                               uint32_t salt = 0) {
  if (!cache->wants_hidden()) return;
  const std::vector<float> rows = random_hidden(layer, cache->tokens(), n, salt);
  if (shape.type == kernels::KvType::kF32) return cache->show_hidden(layer, rows.data(), n);
  std::vector<uint16_t> rounded(rows.size());
  std::transform(rows.begin(), rows.end(), rounded.begin(), to_bf16);
  cache->show_hidden(layer, rounded.data(), n);
}

class CacheDriver {
 public:
  CacheDriver(const CacheShape& shape, int64_t n_heads, ThreadPool* pool)
      : CacheDriver(shape, n_heads, kernels::make_cpu_kv_backend(pool)) {}
  // `window` describes the layers after those of `shape`. `first` and `all` describe a cache of only some of a model's
  // KV heads: the index of its first head, and the number of heads of the model. all = 0: the cache has all heads.
  CacheDriver(const CacheShape& shape, int64_t n_heads, std::shared_ptr<kernels::KvBackend> backend, int64_t first = 0,
              int64_t all = 0, const SlidingWindow& window = {})
      : shape_(shape),
        attention_{n_heads, shape.n_kv_heads, shape.head_dim, 0.125f, shape.type},
        backend_(std::move(backend)),
        first_(first),
        all_(all == 0 ? shape.n_kv_heads : all),
        window_(window) {}

  // Runs one pass over the next n tokens without committing them. Returns the attention outputs of each token,
  // converted to f32: [n_layers, n_heads, head_dim]. Each `salt` gives other random rows.
  std::vector<std::vector<float>> pass(SequenceCache* cache, int64_t n, uint32_t salt = 0) {
    const int64_t heads = attention_.n_heads, dim = shape_.head_dim, width = (heads + 2 * shape_.n_kv_heads) * dim;
    std::vector<std::vector<float>> outputs(static_cast<size_t>(n));
    cache->reserve(n);
    for (int64_t layer = 0; layer < shape_.n_layers + window_.n_layers; ++layer) {
      kernels::AttentionShape attention = attention_;
      if (layer >= shape_.n_layers) attention.window = window_.tokens;
      std::vector<float> rows;
      for (int64_t i = 0; i < n; ++i) append_row(layer, cache->tokens() + i, salt, &rows);
      const float* k = rows.data() + heads * dim;
      if (layer < shape_.n_layers) show_random_hidden(cache, shape_, layer, n, salt);
      cache->write(layer, {k, k + shape_.n_kv_heads * dim, width, 0, n});
      std::vector<kernels::KvSegment> segments;
      cache->view(layer, n, &segments);
      AlignedBuffer out(static_cast<size_t>(n * heads * dim) * sizeof(float));
      const kernels::AttentionTask task{rows.data(), width, n, segments, out.data()};
      backend_->attention(attention, {&task, 1});
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = 0; d < heads * dim; ++d) {
          outputs[static_cast<size_t>(i)].push_back(value(out, i * heads * dim + d));
        }
      }
      if (layer < shape_.n_layers) observe(cache, layer, n, rows, width);
    }
    cache->advance(n);
    return outputs;
  }

  // Runs passes of at most `chunk` tokens up to token `end` and commits each. Returns the outputs by token.
  std::vector<std::vector<float>> run(SequenceCache* cache, int64_t end, int64_t chunk) {
    std::vector<std::vector<float>> outputs;
    while (cache->tokens() < end) {
      const int64_t n = std::min({chunk, end - cache->tokens(), cache->next_boundary() - cache->tokens()});
      for (auto& output : pass(cache, n)) outputs.push_back(std::move(output));
      cache->commit(cache->tokens());
    }
    return outputs;
  }

 private:
  void append_row(int64_t layer, int64_t position, uint32_t salt, std::vector<float>* rows) const {
    // The sum of four uniform numbers, 16 bits of one draw each, is close enough to normal at a fifth of the cost.
    uint64_t state = static_cast<uint64_t>(1 + layer * 100003 + position * 7) + salt * uint64_t{7919};
    const int64_t dim = shape_.head_dim, group = attention_.n_heads / shape_.n_kv_heads, heads = shape_.n_kv_heads;
    // A row holds the queries, keys and values of all heads of the model, in this order.
    const auto is_here = [&](int64_t head) {
      if (head < all_ * group) return head >= first_ * group && head < (first_ + heads) * group;
      const int64_t kv = (head - all_ * group) % all_;
      return kv >= first_ && kv < first_ + heads;
    };
    for (int64_t d = 0; d < (group + 2) * all_ * dim; ++d) {
      uint64_t bits = state += 0x9e3779b97f4a7c15;  // SplitMix64 (Steele et al. 2014)
      bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
      bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
      bits ^= bits >> 31;
      const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
      constexpr float kMean = 2 * 65535.0f, kDeviation = 65536.0f * 0.57735027f;  // sqrt(4 / 12)
      if (is_here(d / dim)) rows->push_back((static_cast<float>(sum) - kMean) / kDeviation);
    }
  }

  float value(const AlignedBuffer& out, int64_t i) const {
    if (shape_.type == kernels::KvType::kF32) return out.as<float>()[i];
    return std::bit_cast<float>(static_cast<uint32_t>(out.as<uint16_t>()[i]) << 16);
  }

  void observe(SequenceCache* cache, int64_t layer, int64_t n, const std::vector<float>& rows, int64_t width) {
    const TokenRange probes = cache->probes(n);
    if (probes.empty()) return;
    std::vector<kernels::KvSegment> segments;
    cache->view(layer, probes.end - cache->tokens(), &segments);
    kernels::AttentionMassTask task{rows.data() + (probes.first - cache->tokens()) * width, width,
                                    probes.end - probes.first, segments, nullptr};
    std::vector<float> mass(static_cast<size_t>(kernels::attention_mass_floats(attention_, task)));
    task.mass = mass.data();
    backend_->attention_mass(attention_, {&task, 1});
    int64_t seen = 1 - task.n;
    for (const kernels::KvSegment& segment : segments) seen += segment.tokens;
    const float* from = mass.data();
    for (int64_t i = 0; i < task.n; ++i, ++seen) {
      const auto size = static_cast<size_t>(seen * shape_.n_kv_heads);
      cache->observe(layer, {probes.first + i,
                             {task.q + i * width, static_cast<size_t>(attention_.n_heads * shape_.head_dim)},
                             {from, size}});
      from += size;
    }
  }

  CacheShape shape_;
  kernels::AttentionShape attention_;
  std::shared_ptr<kernels::KvBackend> backend_;
  int64_t first_, all_;
  SlidingWindow window_;
};

}  // namespace smartkv
