// Summaries of entries (cache/policies/block_summary/cuda) on the emulator, compared with those of the CPU.
#include "cache/policies/block_summary/summary_jobs.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cuda/kv_backend.h"
#include "tests/cuda/test_layer.h"

namespace smartkv::kernels {
namespace {

class CudaSummaryJobs : public DeviceComparison {
 protected:
  struct Result {
    std::vector<int32_t> pivots, group;
    std::vector<float> bias, rows, stats;
  };
  // Runs over n entries of KV head 1: a quantized page if there are more than a page holds, and single tokens, the
  // first of which is a row. The queries see all entries.
  static Result run(const std::shared_ptr<KvBackend>& backend, int64_t n, const SummaryRule& rule, int64_t count,
                    EntryStat stat) {
    Layer layer{backend, 2, 80};
    const int64_t coded = n > kPageTokens ? kPageTokens : 0;
    layer.add_dense(1, 21);
    layer.add_dense(1, 22);
    layer.add_quantized(0, 8, nullptr);
    std::vector<TokenPlace> places = layer.rows(1);
    const TokenMove first{layer.place_of(1, 1, 63), places[0]};
    layer.backend->move(kType, layer.dim, {&first, 1});
    for (int64_t i = 1; i < n - coded; ++i) places.push_back(layer.place_of(1, 1, i));
    SampledQueries queries;
    queries.n = rule.needs_queries() || stat == EntryStat::kAttention ? 13 : 0;
    queries.q = random_values(queries.n * layer.dim, 31);
    for (float& q : queries.q) q *= 0.1f;
    for (int64_t i = 0; i < queries.n; ++i) queries.log_norm.push_back(5.0f + 0.1f * static_cast<float>(i));
    std::vector<float> bias;
    for (int64_t i = 0; i < n; ++i) bias.push_back(0.3f * static_cast<float>(i % 5));
    const std::span<const KvSegment> quantized = std::span(layer.segments).subspan(2, coded > 0 ? 1 : 0);
    const HeadEntries entries{quantized, 1, places, bias, queries.n > 0 ? &queries : nullptr};
    const std::vector<TokenPlace> to = layer.rows(std::min(count, n));
    Result result{std::vector<int32_t>(to.size()),
                  std::vector<int32_t>(bias.size()),
                  std::vector<float>(to.size()),
                  {},
                  std::vector<float>(bias.size())};
    const EntrySummary summary{entries, rule, to, result.pivots.data(), result.group.data(), result.bias.data()};
    const EntryStats stats{entries, stat, count, result.stats.data()};
    const CacheShape shape{1, layer.heads, layer.dim, kType};
    summarize(*backend, shape, {&summary, 1});
    entry_stats(*backend, shape, {&stats, 1});
    backend->finish();
    result.rows = layer.read(to);
    return result;
  }
};

TEST_P(CudaSummaryJobs, AreTheCpusWithinRounding) {
  for (const auto& [n, count] : {std::pair<int64_t, int64_t>{32, 8}, {5, 1}, {75, 9}, {6, 8}}) {
    for (int pivots = 0; pivots < 4; ++pivots) {
      for (int other = 0; other < 3; ++other) {
        const SummaryRule rule{static_cast<PivotRule>(pivots), static_cast<ValueRule>(other),
                               static_cast<BiasRule>((other + pivots) % 3)};
        const auto stat = static_cast<EntryStat>(other);
        const Result expected = run(make_cpu_kv_backend(nullptr), n, rule, count, stat);
        const Result got = run(make_cuda_cache_backend(0), n, rule, count, stat);
        SCOPED_TRACE("n " + std::to_string(n) + " pivots " + std::to_string(pivots) + " other " +
                     std::to_string(other));
        EXPECT_EQ(got.pivots, expected.pivots);
        EXPECT_EQ(got.group, expected.group);
        expect_near(got.bias, expected.bias, 1e-4f, 1e-4f);
        expect_near(got.rows, expected.rows, 1.0f / 128, 1e-3f);  // read through bf16
        expect_near(got.stats, expected.stats, 1e-4f, 1e-4f);
      }
    }
  }
}

// Without kernels of its own, a device reads the same entries for the host.
TEST_P(CudaSummaryJobs, NeedNoKernelsOfTheDevice) {
  const SummaryRule rule{PivotRule::kAttention, ValueRule::kMass, BiasRule::kFitted};
  for (const int stat : {0, 1, 2}) {
    const Result expected = run(make_cpu_kv_backend(nullptr), 75, rule, 9, static_cast<EntryStat>(stat));
    const Result got = run(kernels::cuda::make_cuda_kv_backend(0), 75, rule, 9, static_cast<EntryStat>(stat));
    EXPECT_EQ(got.pivots, expected.pivots);
    EXPECT_EQ(got.group, expected.group);
    EXPECT_EQ(got.bias, expected.bias);
    EXPECT_EQ(got.rows, expected.rows);
    EXPECT_EQ(got.stats, expected.stats);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaSummaryJobs, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
