// Statistics of pages (kernels/cuda/page_stats.h) on the emulator, compared with the CPU's backend.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/kv_backend.h"
#include "tests/cuda/test_layer.h"

namespace smartkv::kernels {
namespace {

class CudaPageStats : public DeviceComparison {
 protected:
  static Layer cpu(int64_t heads, int64_t dim) { return {make_cpu_kv_backend(nullptr), heads, dim}; }
  static Layer device(int64_t heads, int64_t dim) { return {cuda::make_cuda_kv_backend(0), heads, dim}; }
};

TEST_P(CudaPageStats, PagesHaveTheStatisticsOfTheCpu) {
  for (const int64_t dim : {64, 80, 256}) {
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 64}, {4, 60}, {17, 1}}) {
      constexpr int64_t kHeads = 2;
      std::vector<float> ranges[2];
      std::vector<double> squares[2];
      for (const int which : {0, 1}) {
        Layer layer = which == 0 ? cpu(kHeads, dim) : device(kHeads, dim);
        layer.add_dense(1, 3);
        ranges[which].resize(static_cast<size_t>(kHeads * (dim + n)));
        squares[which].resize(static_cast<size_t>(kHeads * (dim + 1)));
        PageStats job{layer.segments[0], kHeads, first, n};
        job.k_range = ranges[which].data();
        job.v_range = ranges[which].data() + kHeads * dim;
        job.k_squares = squares[which].data();
        job.v_squares = squares[which].data() + kHeads * dim;
        layer.backend->page_stats(kType, dim, {&job, 1});
        PageStats part{layer.segments[0], kHeads, first, n};  // a second job over the same page
        part.v_range = job.v_range;
        layer.backend->page_stats(kType, dim, {&part, 1});
        layer.backend->finish();
      }
      EXPECT_EQ(ranges[1], ranges[0]);
      for (size_t i = 0; i < squares[0].size(); ++i) EXPECT_NEAR(squares[1][i], squares[0][i], 1e-9 * squares[0][i]);
    }
  }
}

TEST_P(CudaPageStats, QueriesMeetKeysOfPagesWithAResidual) {
  constexpr int64_t kHeads = 2, kQueries = 5, kStride = 70;
  for (const int64_t dim : {64, 80, 128}) {
    std::vector<uint8_t> order(static_cast<size_t>(kHeads * dim)), turned;
    for (int64_t i = 0; i < kHeads * dim; ++i) order[static_cast<size_t>(i)] = static_cast<uint8_t>(dim - 1 - i % dim);
    turned = order;
    const int64_t kept = dim / 2;
    for (auto head = turned.begin(); head != turned.end(); head += dim) std::rotate(head, head + kept, head + dim);
    const std::vector<float> q = random_values(kQueries * dim, 4);
    std::vector<float> products[2];
    std::vector<float> again[2];
    for (const int which : {0, 1}) {
      Layer layer = which == 0 ? cpu(kHeads, dim) : device(kHeads, dim);
      layer.add_dense(1, 3);
      layer.add_quantized(0, 8, &order, dim - kept);
      layer.add_quantized(0, 4, &turned, kept);
      products[which].assign(static_cast<size_t>(3 * kQueries * kStride), 0.0f);
      const auto job = [&](size_t page, size_t to) {
        KeyProducts of{layer.segments[page], nullptr, 0, 1, 3, 59, q.data(), kQueries};
        of.out = products[which].data() + to * kQueries * kStride;
        of.out_stride = kStride;
        return of;
      };
      KeyProducts jobs[] = {job(0, 0), job(1, 1), job(1, 2)};
      jobs[2].residual = &layer.segments[2];
      jobs[2].residual_columns = dim - kept;
      layer.backend->multiply_keys(kType, dim, jobs);
      layer.backend->finish();

      // A packed page with a residual is encoded again as one page.
      Layer whole = {layer.backend, kHeads, dim};
      whole.add_dense(1, 9);
      whole.add_quantized(0, 8, nullptr);
      PageSource source{{}, &layer.segments[1]};
      source.residual = &layer.segments[2];
      source.residual_columns = dim - kept;
      const KvSegment& to = whole.segments[1];
      const PageEncode encode{source, kHeads, to.quantized, nullptr, const_cast<void*>(to.k), to.head_stride};
      layer.backend->encode(kType, dim, {&encode, 1});
      again[which].resize(static_cast<size_t>(2 * kHeads * kPageTokens * dim));
      const PageRead read{to,
                          0,
                          kHeads,
                          0,
                          kPageTokens,
                          again[which].data(),
                          again[which].data() + kHeads * kPageTokens * dim,
                          kPageTokens * dim};
      layer.backend->read(kType, dim, {&read, 1});
      layer.backend->finish();
    }
    expect_near(products[1], products[0], 1e-5f, 1e-3f);
    EXPECT_NE(
        std::vector<float>(products[0].begin() + kQueries * kStride, products[0].begin() + 2 * kQueries * kStride),
        std::vector<float>(products[0].begin() + 2 * kQueries * kStride, products[0].end()));
    EXPECT_EQ(again[1], again[0]);
  }
}

// Rows are places like slots: tokens move to them, from them, and into quantized pages.
TEST_P(CudaPageStats, RowsAreAPlaceLikeOthers) {
  for (const int64_t dim : {48, 128}) {
    std::vector<float> values[2];
    for (const int which : {0, 1}) {
      Layer layer = which == 0 ? cpu(1, dim) : device(1, dim);
      layer.add_dense(1, 3);
      const std::vector<TokenPlace> rows = layer.rows(kPageTokens);
      std::vector<TokenMove> moves;
      for (int64_t t = 0; t < kPageTokens; ++t)
        moves.push_back({layer.place_of(0, 0, (t * 7) % kPageTokens), rows[static_cast<size_t>(t)]});
      layer.backend->move(kType, dim, moves);
      values[which] = layer.read(rows);
      layer.add_quantized(0, 8, nullptr);
      const KvSegment& quantized = layer.segments[1];
      const PageEncode job{
          {rows}, 1, quantized.quantized, nullptr, const_cast<void*>(quantized.k), quantized.head_stride};
      layer.backend->encode(kType, dim, {&job, 1});
      std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size());
      const PageRead read{quantized, 0, 1, 0, kPageTokens, k.data(), v.data(), 0};
      layer.backend->read(kType, dim, {&read, 1});
      layer.backend->finish();
      values[which].insert(values[which].end(), k.begin(), k.end());
      values[which].insert(values[which].end(), v.begin(), v.end());
    }
    EXPECT_EQ(values[1], values[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaPageStats, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
