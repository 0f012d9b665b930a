#include "kernels/attention.h"

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/aligned_buffer.h"
#include "kernels/bf16.h"
#include "kernels/cpu_level.h"
#include "kernels/elementwise.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

struct Shape {
  int64_t n_heads, n_kv_heads, head_dim;
};

// A sequence of random K, V and queries, and its pages.
struct Sequence {
  AttentionShape shape;
  int64_t tokens;
  std::vector<float> k, v, q;  // k, v: [tokens, n_kv_heads, head_dim]; q: [tokens, n_heads, head_dim]
  std::vector<AlignedBuffer> pages;
  std::vector<KvSegment> segments;

  Sequence(Shape s, KvType type, int64_t n, uint64_t seed) : tokens(n) {
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
    const int64_t element = type == KvType::kBf16 ? 2 : 4, half = s.head_dim * kPageTokens * element;
    for (int64_t start = 0; start < n; start += kPageTokens) {
      AlignedBuffer& page = pages.emplace_back(static_cast<size_t>(2 * half * s.n_kv_heads));
      for (int64_t t = start; t < std::min(n, start + kPageTokens); ++t) {
        const int64_t row = t * s.n_kv_heads * s.head_dim;
        store_kv(type, s.n_kv_heads, s.head_dim, &k[row], &v[row], t - start, page.data(), page.data() + half, 2 * half);
      }
      KvSegment& segment = segments.emplace_back();
      segment.tokens = static_cast<int32_t>(std::min(kPageTokens, n - start));
      segment.k = page.data();
      segment.v = page.data() + half;
      segment.head_stride = 2 * half;
    }
  }

  AttentionTask task(int64_t n, void* out) const {
    AttentionTask task;
    task.q = q.data() + (tokens - n) * shape.n_heads * shape.head_dim;
    task.q_stride = shape.n_heads * shape.head_dim;
    task.n = n;
    task.segments = segments;
    task.out = out;
    return task;
  }

  // In double precision, without any of the kernels' tricks. [n, n_heads, head_dim]
  std::vector<double> reference(int64_t n) const {
    std::vector<double> out;
    for (int64_t i = tokens - n; i < tokens; ++i) {
      for (int64_t h = 0; h < shape.n_heads; ++h) {
        const int64_t kv = h / (shape.n_heads / shape.n_kv_heads);
        std::vector<double> weights(static_cast<size_t>(i + 1));
        double maximum = -1e300, sum = 0;
        for (int64_t t = 0; t <= i; ++t) {
          double dot = 0;
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            dot += static_cast<double>(q[(i * shape.n_heads + h) * shape.head_dim + d]) *
                   k[(t * shape.n_kv_heads + kv) * shape.head_dim + d];
          }
          weights[t] = dot * shape.scale;
          maximum = std::max(maximum, weights[t]);
        }
        for (double& w : weights) sum += w = std::exp(w - maximum);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          double o = 0;
          for (int64_t t = 0; t <= i; ++t) o += weights[t] / sum * v[(t * shape.n_kv_heads + kv) * shape.head_dim + d];
          out.push_back(o);
        }
      }
    }
    return out;
  }
};

std::vector<uint8_t> run(ThreadPool& pool, const Sequence& sequence, int64_t n) {
  const size_t element = sequence.shape.type == KvType::kBf16 ? 2 : 4;
  std::vector<uint8_t> out(static_cast<size_t>(n * sequence.shape.n_heads * sequence.shape.head_dim) * element, 0xff);
  const AttentionTask task = sequence.task(n, out.data());
  AttentionScratch scratch;
  attention(pool, sequence.shape, {&task, 1}, scratch);
  return out;
}

float element(const std::vector<uint8_t>& out, KvType type, size_t i) {
  if (type == KvType::kBf16) return from_bf16(reinterpret_cast<const uint16_t*>(out.data())[i]);
  return reinterpret_cast<const float*>(out.data())[i];
}

class AttentionLevels : public testing::TestWithParam<std::tuple<CpuLevel, KvType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) <= detected_cpu_level()) set_cpu_level(std::get<0>(GetParam()));
  }
  void TearDown() override { set_cpu_level(detected_cpu_level()); }
};

TEST_P(AttentionLevels, EqualsTheDefinition) {
  const KvType type = std::get<1>(GetParam());
  ThreadPool pool(2);
  for (const Shape shape : {Shape{9, 3, 64}, Shape{4, 4, 128}, Shape{8, 1, 32}, Shape{2, 1, 80}}) {
    for (const int64_t tokens : {1, 2, 17, 64, 65, 300}) {
      const Sequence sequence(shape, type, tokens, static_cast<uint64_t>(tokens));
      const int64_t n = std::min<int64_t>(tokens, 21);
      const std::vector<double> expected = sequence.reference(n);
      const std::vector<uint8_t> out = run(pool, sequence, n);
      double error = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const double difference = element(out, type, i) - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
      }
      // bf16: rounding of the probabilities and of the result, 2^-9 each at most.
      EXPECT_LT(std::sqrt(error / norm), type == KvType::kBf16 ? 4e-3 : 2e-6)
          << "heads " << shape.n_heads << "/" << shape.n_kv_heads << " dim " << shape.head_dim << " tokens " << tokens;
    }
  }
}

TEST_P(AttentionLevels, ARowsBitsDependOnItsOwnSequenceOnly) {
  const KvType type = std::get<1>(GetParam());
  const Sequence sequence({9, 3, 64}, type, 1100, 7), other({9, 3, 64}, type, 333, 8);
  ThreadPool one(1), two(2), five(5);
  const std::vector<uint8_t> all = run(two, sequence, 37);
  const size_t row = all.size() / 37;
  EXPECT_EQ(all, run(one, sequence, 37));
  EXPECT_EQ(all, run(five, sequence, 37));
  for (const int64_t n : {1, 2, 5, 16, 33}) {
    const std::vector<uint8_t> some = run(two, sequence, n);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
  }
  // Beside another sequence, in one call.
  std::vector<uint8_t> a(row), b(3 * row);
  const AttentionTask tasks[] = {sequence.task(1, a.data()), other.task(3, b.data())};
  AttentionScratch scratch;
  attention(two, sequence.shape, tasks, scratch);
  EXPECT_EQ(0, std::memcmp(a.data(), all.data() + 36 * row, row));
  EXPECT_EQ(b, run(one, other, 3));
}

INSTANTIATE_TEST_SUITE_P(
    Levels, AttentionLevels,
    testing::Combine(testing::Values(CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni),
                     testing::Values(KvType::kBf16, KvType::kF32)),
    [](const auto& row) {
      return std::string(name(std::get<0>(row.param))) + (std::get<1>(row.param) == KvType::kBf16 ? "_bf16" : "_f32");
    });

TEST(Attention, RefusesShapesItCannotRun) {
  ThreadPool pool(1);
  AttentionScratch scratch;
  EXPECT_THROW(attention(pool, {9, 3, 72, 1.0f, KvType::kBf16}, {}, scratch), std::invalid_argument);
  EXPECT_THROW(attention(pool, {9, 2, 64, 1.0f, KvType::kBf16}, {}, scratch), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
