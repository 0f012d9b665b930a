// attention() over cut pages must equal attention over dense pages with zeros in the other channels.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/aligned_buffer.h"
#include "kernels/bf16.h"
#include "kernels/cpu_level.h"
#include "kernels/elementwise.h"
#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/level_test.h"

namespace smartkv::kernels {
namespace {

class CutAttention : public LevelTest {
 protected:
  ThreadPool threads_{2};
  std::shared_ptr<KvBackend> backend_ = make_cpu_kv_backend(&threads_);
};

// Pages of random tokens, each once cut, and once dense with zeros in the channels that are cut out.
struct Pages {
  Pages(KvBackend& backend, KvType type, int64_t heads, int64_t dim, int64_t k_channels, int64_t v_channels, int64_t n,
        uint32_t seed) {
    const int64_t element = type == KvType::kBf16 ? 2 : 4, head_bytes = kPageTokens * dim * element;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* order : {&k_order, &v_order}) {
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<uint8_t> channels(static_cast<size_t>(dim));
        std::iota(channels.begin(), channels.end(), uint8_t{0});
        std::shuffle(channels.begin(), channels.end(), random);
        order->insert(order->end(), channels.begin(), channels.end());
      }
    }
    for (int64_t page = 0; page < n; ++page) {
      std::vector<float> k(static_cast<size_t>(kPageTokens * heads * dim)), v(k.size());
      for (auto* rows : {&k, &v}) std::generate(rows->begin(), rows->end(), [&] { return normal(random); });
      const auto store = [&](bool zeroed) {
        std::vector<float> some_k = k, some_v = v;
        for (int64_t row = 0; zeroed && row < kPageTokens * heads; ++row) {
          const int64_t head = row % heads;
          for (int64_t c = k_channels; c < dim; ++c)
            some_k[static_cast<size_t>(row * dim + k_order[static_cast<size_t>(head * dim + c)])] = 0;
          for (int64_t c = v_channels; c < dim; ++c)
            some_v[static_cast<size_t>(row * dim + v_order[static_cast<size_t>(head * dim + c)])] = 0;
        }
        std::byte* const to = memory.emplace_back(static_cast<size_t>(2 * heads * head_bytes)).data();
        backend.write(type, heads, dim,
                      {some_k.data(), some_v.data(), heads * dim, 0, kPageTokens, to, to + head_bytes, 2 * head_bytes});
        KvSegment segment;
        segment.tokens = kPageTokens;
        segment.k = to;
        segment.v = to + head_bytes;
        segment.head_stride = 2 * head_bytes;
        return segment;
      };
      const KvSegment whole = store(false);
      dense.push_back(store(true));
      const int64_t k_bytes = kPageTokens * k_channels * element,
                    stride = kPageTokens * (k_channels + v_channels) * element;
      std::byte* const to = memory.emplace_back(static_cast<size_t>(heads * stride)).data();
      KvSegment segment;
      segment.format = KvSegment::Format::kCut;
      segment.tokens = kPageTokens;
      segment.k = to;
      segment.v = to + k_bytes;
      segment.head_stride = stride;
      segment.channel_order = k_order.data();
      segment.value_order = v_order.data();
      segment.k_channels = static_cast<int32_t>(k_channels);
      segment.v_channels = static_cast<int32_t>(v_channels);
      const PageCut job{whole, heads, segment, to, to + k_bytes};
      backend.cut(type, dim, {&job, 1});
      cut.push_back(segment);
    }
  }

  std::vector<uint8_t> k_order, v_order;
  std::vector<AlignedBuffer> memory;
  std::vector<KvSegment> dense, cut;
};

float value(KvType type, const AlignedBuffer& out, int64_t i) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(out.data())[i];
  return from_bf16(reinterpret_cast<const uint16_t*>(out.data())[i]);
}

TEST_P(CutAttention, EqualsDensePagesWithZeros) {
  for (const auto& [heads, kv_heads, dim, k, v] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>{9, 3, 64, 48, 32},
        {2, 2, 128, 16, 128},
        {3, 1, 80, 80, 16},
        {4, 2, 32, 16, 16},
        {8, 1, 256, 208, 112}}) {
    Pages pages(*backend_, type(), kv_heads, dim, k, v, 6, static_cast<uint32_t>(dim));
    const AttentionShape shape{heads, kv_heads, dim, 1 / std::sqrt(static_cast<float>(dim)), type()};
    for (const int64_t n : {1, 2, 7}) {
      // The last page is dense. Its last tokens are those of the queries.
      std::vector<KvSegment> cut(pages.cut.begin(), pages.cut.end() - 1),
          dense(pages.dense.begin(), pages.dense.end() - 1);
      cut.insert(cut.begin() + 2, pages.dense[5]);
      dense.insert(dense.begin() + 2, pages.dense[5]);
      cut.push_back(pages.dense[0]);
      dense.push_back(pages.dense[0]);
      std::vector<float> q(static_cast<size_t>(n * heads * dim));
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      std::generate(q.begin(), q.end(), [&] { return normal(random); });
      const auto run = [&](std::span<const KvSegment> segments) {
        AlignedBuffer out(q.size() * sizeof(float));
        const AttentionTask task{q.data(), heads * dim, n, segments, out.data()};
        backend_->attention(shape, {&task, 1});
        return out;
      };
      const AlignedBuffer found = run(cut), expected = run(dense);
      double error = 0, size = 0;
      for (int64_t i = 0; i < std::ssize(q); ++i) {
        const double a = value(type(), found, i), b = value(type(), expected, i);
        error += (a - b) * (a - b);
        size += b * b;
      }
      EXPECT_LT(std::sqrt(error / size), type() == KvType::kBf16 ? 4e-3 : 1e-5) << dim << " n " << n;
    }
  }
}

TEST_P(CutAttention, RefusesWhatNoKernelRuns) {
  Pages pages(*backend_, type(), 2, 64, 32, 32, 1, 1);
  const AttentionShape shape{2, 2, 64, 0.125f, type()};
  const auto run = [&](const KvSegment& segment) {
    std::vector<float> q(2 * 64);
    AlignedBuffer out(q.size() * sizeof(float));
    const AttentionTask task{q.data(), 2 * 64, 1, {&segment, 1}, out.data()};
    backend_->attention(shape, {&task, 1});
  };
  EXPECT_NO_THROW(run(pages.cut[0]));
  for (const auto& [tokens, k, v] :
       {std::tuple<int32_t, int32_t, int32_t>{63, 32, 32}, {64, 24, 32}, {64, 32, 0}, {64, 32, 80}}) {
    KvSegment bad = pages.cut[0];
    bad.tokens = tokens;
    bad.k_channels = k;
    bad.v_channels = v;
    EXPECT_THROW(run(bad), std::invalid_argument) << tokens << ' ' << k << ' ' << v;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, CutAttention, kLevels, name_of_level);

}  // namespace
}  // namespace smartkv::kernels
