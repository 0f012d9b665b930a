// A random sequence, its pages in both formats, and the definition of attention over it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/aligned_buffer.h"
#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"

namespace smartkv::kernels {

struct Shape {
  int64_t n_heads, n_kv_heads, head_dim;
};

// Page i of a sequence has format [i % size]. Nullopt means a dense page.
using PageFormats = std::vector<std::optional<QuantizedLayout>>;

// The last tokens of a sequence, and the pages that hold them, are always dense.
constexpr int64_t kDenseTail = 40;

// Whether every second page has a bias.
enum class Bias : uint8_t { kNone, kSome };

// A sequence of random K, V and queries, and its pages. `k` and `v` hold the decoded values of quantized pages.
struct Sequence {
  AttentionShape shape;
  int64_t tokens;
  std::vector<float> k, v, q;   // k, v: [tokens, n_kv_heads, head_dim]; q: [tokens, n_heads, head_dim]
  std::vector<uint8_t> orders;  // channel orders of every other quantized page: [n_kv_heads, head_dim]
  std::vector<float> bias;      // [tokens, n_kv_heads]
  std::vector<AlignedBuffer> pages;
  std::vector<std::vector<float>> page_bias;
  std::vector<KvSegment> segments;

  Sequence(Shape s, KvType type, int64_t n, uint64_t seed, const PageFormats& formats = {std::nullopt},
           Bias biased = Bias::kNone)
      : tokens(n) {
    shape = {s.n_heads, s.n_kv_heads, s.head_dim, 1.0f / std::sqrt(static_cast<float>(s.head_dim)), type};
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.5f);
    const auto fill = [&](std::vector<float>& x, int64_t size) {
      x.resize(static_cast<size_t>(size));
      for (float& value : x) value = type == KvType::kBf16 ? from_bf16(to_bf16(normal(random))) : normal(random);
    };
    fill(k, n * s.n_kv_heads * s.head_dim);
    fill(v, n * s.n_kv_heads * s.head_dim);
    fill(q, n * s.n_heads * s.head_dim);
    orders.resize(static_cast<size_t>(s.n_kv_heads * s.head_dim));
    for (int64_t h = 0; h < s.n_kv_heads; ++h) {
      const auto order = orders.begin() + h * s.head_dim;
      std::iota(order, order + s.head_dim, uint8_t{0});
      std::shuffle(order, order + s.head_dim, random);
    }
    for (int64_t start = 0; start < n; start += kPageTokens) {
      const auto& format = formats[static_cast<size_t>(start / kPageTokens) % formats.size()];
      if (format && start + kPageTokens + kDenseTail <= n) {
        add_quantized(*format, start, start / kPageTokens % 2 == 0 ? nullptr : orders.data());
      } else {
        add_dense(start);
      }
    }
    bias.resize(static_cast<size_t>(n * s.n_kv_heads));
    if (biased == Bias::kNone) return;
    std::uniform_real_distribution<float> mass(-2.0f, 4.0f);
    for (size_t i = 0; i < segments.size(); i += 2) {
      // Entries past the segment's tokens may hold anything.
      std::vector<float>& of = page_bias.emplace_back(static_cast<size_t>(s.n_kv_heads * kPageTokens), NAN);
      for (int64_t h = 0; h < s.n_kv_heads; ++h) {
        for (int64_t t = 0; t < segments[i].tokens; ++t) {
          of[h * kPageTokens + t] = bias[(static_cast<int64_t>(i) * kPageTokens + t) * s.n_kv_heads + h] = mass(random);
        }
      }
      segments[i].bias = of.data();
    }
  }

  void add_dense(int64_t start) {
    const int64_t half = shape.head_dim * kPageTokens * (shape.type == KvType::kBf16 ? 2 : 4);
    AlignedBuffer& page = pages.emplace_back(static_cast<size_t>(2 * half * shape.n_kv_heads));
    for (int64_t t = start; t < std::min(tokens, start + kPageTokens); ++t) {
      const int64_t row = t * shape.n_kv_heads * shape.head_dim;
      store_kv(shape.type, shape.n_kv_heads, shape.head_dim, &k[row], &v[row], t - start, page.data(),
               page.data() + half, 2 * half);
    }
    KvSegment& segment = segments.emplace_back();
    segment.tokens = static_cast<int32_t>(std::min(kPageTokens, tokens - start));
    segment.k = page.data();
    segment.v = page.data() + half;
    segment.head_stride = 2 * half;
  }

  void add_quantized(const QuantizedLayout& layout, int64_t start, const uint8_t* channel_order) {
    const int64_t dim = shape.head_dim, bytes = quantized_offsets(layout, dim).total;
    AlignedBuffer& page = pages.emplace_back(static_cast<size_t>(bytes * shape.n_kv_heads));
    for (int64_t h = 0; h < shape.n_kv_heads; ++h) {
      std::vector<float> head_k(static_cast<size_t>(kPageTokens * dim)), head_v(head_k.size());
      const auto copy = [&](auto&& move) {
        for (int64_t t = 0; t < kPageTokens; ++t) {
          for (int64_t d = 0; d < dim; ++d) move(((start + t) * shape.n_kv_heads + h) * dim + d, t * dim + d);
        }
      };
      copy([&](int64_t from, int64_t to) { head_k[to] = k[from], head_v[to] = v[from]; });
      void* block = page.data() + h * bytes;
      const uint8_t* order = channel_order == nullptr ? nullptr : channel_order + h * dim;
      quantize_page(layout, dim, order, head_k.data(), head_v.data(), block);
      dequantize_page(layout, dim, order, block, head_k.data(), head_v.data());
      copy([&](int64_t to, int64_t from) { k[to] = head_k[from], v[to] = head_v[from]; });
    }
    KvSegment& segment = segments.emplace_back();
    segment.format = KvSegment::Format::kQuantized;
    segment.tokens = kPageTokens;
    segment.k = page.data();
    segment.head_stride = bytes;
    segment.quantized = layout;
    segment.channel_order = channel_order;
  }

  // Return tasks over the last n queries, which write to `out` or `mass`.
  AttentionTask task(int64_t n, void* out) const {
    return {first_query(n), shape.n_heads * shape.head_dim, n, segments, out};
  }
  AttentionMassTask mass_task(int64_t n, float* mass) const {
    return {first_query(n), shape.n_heads * shape.head_dim, n, segments, mass};
  }
  // Returns the first of the last n queries: [n, n_heads, head_dim].
  const float* first_query(int64_t n) const { return q.data() + (tokens - n) * shape.n_heads * shape.head_dim; }

  // Returns softmax(scale q K^T + bias) of one query and head, 0 before the query's window: [query + 1]. Computed in
  // double precision without any of the kernels' tricks.
  std::vector<double> probabilities(int64_t query, int64_t head) const {
    const int64_t kv = head / (shape.n_heads / shape.n_kv_heads);
    std::vector<double> weights(static_cast<size_t>(query + 1));
    double maximum = -1e300, sum = 0;
    const int64_t first = shape.window > 0 ? std::max<int64_t>(0, query + 1 - shape.window) : 0;
    for (int64_t t = first; t <= query; ++t) {
      double dot = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        dot += static_cast<double>(q[(query * shape.n_heads + head) * shape.head_dim + d]) *
               k[(t * shape.n_kv_heads + kv) * shape.head_dim + d];
      }
      dot *= shape.scale;
      if (shape.soft_cap > 0) dot = shape.soft_cap * std::tanh(dot / shape.soft_cap);
      weights[t] = dot + static_cast<double>(bias[t * shape.n_kv_heads + kv]);
      maximum = std::max(maximum, weights[t]);
    }
    if (shape.sinks != nullptr) {
      maximum = std::max(maximum, static_cast<double>(shape.sinks[head]));
      sum = std::exp(static_cast<double>(shape.sinks[head]) - maximum);
    }
    for (int64_t t = first; t <= query; ++t) sum += weights[t] = std::exp(weights[t] - maximum);
    for (double& w : weights) w /= sum;
    return weights;
  }

  // Returns the attention of the last n queries: [n, n_heads, head_dim].
  std::vector<double> reference(int64_t n) const {
    std::vector<double> out;
    for (int64_t i = tokens - n; i < tokens; ++i) {
      for (int64_t h = 0; h < shape.n_heads; ++h) {
        const int64_t kv = h / (shape.n_heads / shape.n_kv_heads);
        const std::vector<double> p = probabilities(i, h);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          double o = 0;
          for (int64_t t = 0; t <= i; ++t) o += p[t] * v[(t * shape.n_kv_heads + kv) * shape.head_dim + d];
          out.push_back(o);
        }
      }
    }
    return out;
  }

  // Returns what attention_mass() should return for the last n queries.
  std::vector<double> mass_reference(int64_t n) const {
    std::vector<double> out;
    for (int64_t i = tokens - n; i < tokens; ++i) {
      const int64_t group = shape.n_heads / shape.n_kv_heads;
      for (int64_t kv = 0; kv < shape.n_kv_heads; ++kv) {
        std::vector<double> most(static_cast<size_t>(i + 1));
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
          const std::vector<double> p = probabilities(i, h);
          for (int64_t t = 0; t <= i; ++t) most[t] = std::max(most[t], p[t]);
        }
        out.insert(out.end(), most.begin(), most.end());
      }
    }
    return out;
  }
};

// Returns sqrt(sum (value(i) - expected[i])^2 / sum expected[i]^2).
template <typename Value>
double relative_error(const std::vector<double>& expected, const Value& value) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(value(i)) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

// Writes `pattern` to all slots from `tokens` on of one KV head of a dense page: two bf16 or one f32 at a time.
inline void poison_slots(KvType type, int64_t head_dim, int64_t tokens, uint32_t pattern, void* k, void* v) {
  for (int64_t t = tokens; t < kPageTokens; ++t) {
    for (int64_t d = 0; d < head_dim; ++d) {
      if (type == KvType::kBf16) {
        const auto half = static_cast<uint16_t>(pattern >> 16);
        static_cast<uint16_t*>(k)[(d / 2 * kPageTokens + t) * 2 + d % 2] = half;
        static_cast<uint16_t*>(v)[(t / 2 * head_dim + d) * 2 + t % 2] = half;
      } else {
        static_cast<uint32_t*>(k)[d * kPageTokens + t] = static_cast<uint32_t*>(v)[t * head_dim + d] = pattern;
      }
    }
  }
}

// Quiet and signalling NaN, infinities, and a number that overflows when multiplied. As f32, or as bf16 by the upper
// half.
constexpr uint32_t kPoisons[] = {0x7fc00001u, 0x7fa00001u, 0xffa00001u, 0x7f800000u, 0xff800000u, 0x7f7fffffu};

// Poisons the slots of all dense pages that hold no token.
inline void poison_slots(Sequence& sequence, uint32_t pattern) {
  for (size_t i = 0; i < sequence.segments.size(); ++i) {
    const KvSegment& segment = sequence.segments[i];
    if (segment.format != KvSegment::Format::kDense) continue;
    std::byte* const page = sequence.pages[i].data();
    for (int64_t head = 0; head < sequence.shape.n_kv_heads; ++head) {
      poison_slots(sequence.shape.type, sequence.shape.head_dim, segment.tokens, pattern,
                   page + head * segment.head_stride, page + head * segment.head_stride + segment.head_stride / 2);
    }
  }
}

// Returns the attention of the sequence's last n queries, computed in a call of its own, as bytes of shape.type.
inline std::vector<uint8_t> run_attention(ThreadPool& pool, const Sequence& sequence, int64_t n) {
  const size_t element = sequence.shape.type == KvType::kBf16 ? 2 : 4;
  std::vector<uint8_t> out(static_cast<size_t>(n * sequence.shape.n_heads * sequence.shape.head_dim) * element, 0xff);
  const AttentionTask task = sequence.task(n, out.data());
  AttentionScratch scratch;
  attention(pool, sequence.shape, {&task, 1}, scratch);
  return out;
}

// Returns attention_mass() of the sequence's last n queries. call(task) runs it.
template <typename Call>
std::vector<float> run_mass(const Sequence& sequence, int64_t n, const Call& call) {
  AttentionMassTask task = sequence.mass_task(n, nullptr);
  std::vector<float> mass(static_cast<size_t>(attention_mass_floats(sequence.shape, task)) + 1, -1.0f);
  task.mass = mass.data();
  call(task);
  EXPECT_EQ(mass.back(), -1.0f) << "written past the end";
  mass.pop_back();
  return mass;
}

// Returns formats for tests of attention mass, for head_dim 64, 80, 128 and others.
inline PageFormats mass_formats(int64_t dim) {
  const QuantizedLayout four{uniform_runs(64, 4), uniform_runs(kPageTokens, 4)};
  const QuantizedLayout mixed{{{2, 9, 16, 5}}, {{4, 4, 4, 4}}};  // for 128 channels
  if (dim == 64) return {std::nullopt, four, four, std::nullopt};
  if (dim == 80) return {QuantizedLayout{{{20, 0, 0, 0}}, {{0, 16, 0, 0}}}, std::nullopt};
  if (dim == 128) return {mixed, std::nullopt};
  return {std::nullopt};
}

// Returns element i of an attention output of the given type.
inline float element(const std::vector<uint8_t>& out, KvType type, size_t i) {
  if (type == KvType::kBf16) return from_bf16(reinterpret_cast<const uint16_t*>(out.data())[i]);
  return reinterpret_cast<const float*>(out.data())[i];
}

}  // namespace smartkv::kernels
