// Page statistics and summaries for policies (kernels/cuda/page_figures.h, summaries.h) on the emulator, compared with
// the CPU's backend.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/kv_backend.h"
#include "kernels/kv_backend.h"
#include "kernels/pending_results.h"
#include "tests/cuda/device_test.h"

namespace smartkv::kernels {
namespace {

constexpr KvType kType = KvType::kBf16;

// Pages of one layer on one backend, filled by a seed.
class Layer {
 public:
  Layer(std::shared_ptr<KvBackend> of, int64_t n_heads, int64_t head_dim)
      : backend(std::move(of)), heads(n_heads), dim(head_dim), half(head_dim * kPageTokens * 2) {}

  void add_dense(int n, uint32_t seed) {
    for (int i = 0; i < n; ++i) {
      const std::vector<float> rows = random_values(2 * heads * kPageTokens * dim, seed + static_cast<uint32_t>(i));
      std::byte* const page = add(2 * heads * half);
      std::vector<TokenWrite> writes;
      for (int64_t row = 0; row < heads * kPageTokens; ++row) {
        const float* k = rows.data() + 2 * row * dim;
        writes.push_back({k, k + dim, place(page, row / kPageTokens, row % kPageTokens)});
      }
      backend->write_tokens(kType, dim, writes);
      segments.push_back({KvSegment::Format::kDense, kPageTokens, page, page + half, 2 * half});
    }
  }
  // Adds a quantized page of page `from`. `order` is its order of channels, null for the natural one; it must outlive
  // the page. Without codes, the last `dropped` channels of the order are represented by their means.
  void add_codes(size_t from, int bits, const std::vector<uint8_t>* order, int64_t dropped = 0) {
    QuantizedLayout layout{uniform_runs(dim - dropped, bits), uniform_runs(kPageTokens, bits)};
    layout.k.dropped = static_cast<uint8_t>(dropped / 4);
    const int64_t bytes = quantized_offsets(layout, dim).total;
    std::byte* const page = add(heads * bytes);
    const std::vector<TokenPlace> places = places_of(from);
    const uint8_t* const channels = order == nullptr ? nullptr : order->data();
    const PageEncode job{{places}, heads, layout, channels, page, bytes};
    backend->encode(kType, dim, {&job, 1});
    KvSegment codes{KvSegment::Format::kQuantized, kPageTokens, page, nullptr, bytes};
    codes.quantized = layout;
    codes.channel_order = channels;
    segments.push_back(codes);
  }
  TokenPlace place_of(size_t page, int64_t head, int64_t slot) {
    return place(static_cast<std::byte*>(const_cast<void*>(segments[page].k)), head, slot);
  }
  std::vector<TokenPlace> places_of(size_t page) {
    std::vector<TokenPlace> places;
    for (int64_t row = 0; row < heads * kPageTokens; ++row) places.push_back(place_of(page, row / kPageTokens, row % kPageTokens));
    return places;
  }
  std::vector<TokenPlace> rows(int64_t n) {
    std::vector<TokenPlace> rows;
    for (auto* at = reinterpret_cast<float*>(add(n * 2 * dim * 4)); static_cast<int64_t>(rows.size()) < n; at += 2 * dim) {
      rows.push_back({at, at + dim, TokenPlace::kRow});
    }
    return rows;
  }
  // Returns the contents of rows, read through a page.
  std::vector<float> read(const std::vector<TokenPlace>& of) {
    std::byte* const page = add(2 * heads * half);
    std::vector<float> values(of.size() * static_cast<size_t>(2 * dim));
    for (size_t i = 0; i < of.size(); ++i) {
      const TokenPlace to = place(page, 0, static_cast<int64_t>(i) % kPageTokens);
      const TokenMove move{of[i], to};
      backend->move(kType, dim, {&move, 1});
      float* const row = &values[i * static_cast<size_t>(2 * dim)];
      const PageRead job = read_of(to, row, row + dim);
      backend->read(kType, dim, {&job, 1});
    }
    backend->finish();
    return values;
  }

  std::shared_ptr<KvBackend> backend;
  int64_t heads, dim, half;
  std::vector<KvSegment> segments;

 private:
  std::byte* add(int64_t bytes) {
    return memory_.emplace_back(std::make_unique<PageMemory>(backend, static_cast<size_t>(bytes)))->data();
  }
  TokenPlace place(std::byte* page, int64_t head, int64_t slot) const {
    std::byte* const k = page + head * 2 * half;
    return {k, k + half, static_cast<int32_t>(slot)};
  }

  std::vector<std::unique_ptr<PageMemory>> memory_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float relative, float absolute) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], relative * std::abs(expected[i]) + absolute) << i;
}

class CudaFigures : public OrderTest {
 protected:
  void SetUp() override {
    SMARTKV_NEEDS_FUSED_PRODUCTS();
    OrderTest::SetUp();
  }

  static Layer cpu(int64_t heads, int64_t dim) { return {make_cpu_kv_backend(nullptr), heads, dim}; }
  static Layer device(int64_t heads, int64_t dim) { return {cuda::make_cuda_kv_backend(0), heads, dim}; }
};

std::shared_ptr<const GateMaps> gate_of(int64_t heads, int64_t dim, int64_t n_layers) {
  auto gate = std::make_shared<GateMaps>();
  gate->n_kv_heads = heads;
  gate->head_dim = dim;
  gate->importance_heads = heads + 1;  // one more head, which another tensor-parallel rank has
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    auto of_layer = std::make_shared<GateMaps::Layer>();
    GateMaps::Layer& maps = *of_layer;
    gate->layers.push_back(of_layer);
    for (size_t i = 0; i < GateMaps::kDepth; ++i) {
      const int64_t out = i == GateMaps::kDepth - 1 ? 1 : GateMaps::kHidden, in = i == 0 ? dim : GateMaps::kHidden;
      maps[i].weight = make_packed(WeightType::kBf16, out, in);
      for (int64_t group = 0; group < (out + 15) / 16; ++group) {
        std::vector<float> rows(static_cast<size_t>(16 * in), 0.0f);
        for (int64_t at = 0; at < std::min<int64_t>(16, out) * in; ++at) rows[static_cast<size_t>(at)] = normal(random);
        pack_lanes(maps[i].weight, group, rows.data());
      }
      for (int64_t row = 0; row < out; ++row) maps[i].bias.push_back(normal(random));
    }
    auto& importance = gate->importance.emplace_back(static_cast<size_t>(gate->importance_heads * (gate->importance_features() + 1)));
    for (float& weight : importance) weight = normal(random);
  }
  return gate;
}

TEST_P(CudaFigures, GatesScoreTokensAsOnTheCpu) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{1, 64}, {3, 80}, {2, 128}, {1, 256}}) {
    const auto gate = gate_of(heads, dim, 2);
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 64}, {5, 1}, {61, 70}}) {
      std::vector<float> angles(static_cast<size_t>(n * dim));
      for (int64_t i = 0; i < n * dim / 2; ++i) {
        const int64_t at = i / (dim / 2) * dim + i % (dim / 2);
        angles[static_cast<size_t>(at)] = 1.2f * std::cos(0.1f * static_cast<float>(i));  // YaRN scales them
        angles[static_cast<size_t>(at + dim / 2)] = 1.2f * std::sin(0.1f * static_cast<float>(i));
      }
      std::vector<float> scores[2], importance[2], norms[2];
      for (const int which : {0, 1}) {
        Layer layer = which == 0 ? cpu(heads, dim) : device(heads, dim);
        layer.add_dense(3, 7);
        const auto held = layer.backend->hold(gate);
        scores[which].resize(static_cast<size_t>(heads * n));
        norms[which] = scores[which];
        importance[which].resize(static_cast<size_t>(gate->importance_heads * n));
        std::vector<float> unasked(scores[which].size());
        const std::vector<KvSegment> reversed{layer.segments[2], layer.segments[1], layer.segments[0]};
        PendingResults results(*layer.backend);
        const TokenScoring layers[] = {{0, layer.segments, first, n, angles.data(), unasked.data(), nullptr},
                                       {1, reversed, first, n, angles.data(), scores[which].data(), importance[which].data()}};
        layer.backend->score(kType, heads, dim, held, layers);
        const TokenScoring norm{0, layer.segments, first, n, nullptr, norms[which].data(), nullptr};
        layer.backend->score(kType, heads, dim, nullptr, {&norm, 1});
        results.wait();
      }
      // Keys and activations are rounded to bf16, which differs by one step here and there.
      expect_near(scores[1], scores[0], 0.02f, 0.02f);
      expect_near(importance[1], importance[0], 1e-4f, 1e-4f);
      expect_near(norms[1], norms[0], 1e-5f, 0.0f);
    }
  }
}

TEST(DeviceGates, AreOnTheDeviceOnce) {
  const auto backend = cuda::make_cuda_kv_backend(0);
  const auto gate = gate_of(1, 64, 1), other = gate_of(1, 64, 1);
  const auto held = backend->hold(gate);
  EXPECT_EQ(backend->hold(gate), held);
  EXPECT_NE(backend->hold(other), held);
}

TEST_P(CudaFigures, PagesAreStudiedAsOnTheCpu) {
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
        PageStudy job{layer.segments[0], kHeads, first, n};
        job.k_range = ranges[which].data();
        job.v_range = ranges[which].data() + kHeads * dim;
        job.k_squares = squares[which].data();
        job.v_squares = squares[which].data() + kHeads * dim;
        layer.backend->study(kType, dim, {&job, 1});
        PageStudy part{layer.segments[0], kHeads, first, n};  // a second job over the same page
        part.v_range = job.v_range;
        layer.backend->study(kType, dim, {&part, 1});
        layer.backend->finish();
      }
      EXPECT_EQ(ranges[1], ranges[0]);
      for (size_t i = 0; i < squares[0].size(); ++i) EXPECT_NEAR(squares[1][i], squares[0][i], 1e-9 * squares[0][i]);
    }
  }
}

TEST_P(CudaFigures, QueriesMeetKeysOfPagesWithAResidual) {
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
      layer.add_codes(0, 8, &order, dim - kept);
      layer.add_codes(0, 4, &turned, kept);
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
      whole.add_codes(0, 8, nullptr);
      PageSource source{{}, &layer.segments[1]};
      source.residual = &layer.segments[2];
      source.residual_columns = dim - kept;
      const KvSegment& to = whole.segments[1];
      const PageEncode encode{source, kHeads, to.quantized, nullptr, const_cast<void*>(to.k), to.head_stride};
      layer.backend->encode(kType, dim, {&encode, 1});
      again[which].resize(static_cast<size_t>(2 * kHeads * kPageTokens * dim));
      const PageRead read{to, 0, kHeads, 0, kPageTokens, again[which].data(), again[which].data() + kHeads * kPageTokens * dim,
                          kPageTokens * dim};
      layer.backend->read(kType, dim, {&read, 1});
      layer.backend->finish();
    }
    expect_near(products[1], products[0], 1e-5f, 1e-3f);
    EXPECT_NE(std::vector<float>(products[0].begin() + kQueries * kStride, products[0].begin() + 2 * kQueries * kStride),
              std::vector<float>(products[0].begin() + 2 * kQueries * kStride, products[0].end()));
    EXPECT_EQ(again[1], again[0]);
  }
}

// Rows are places like slots: tokens move to them, from them, and into quantized pages.
TEST_P(CudaFigures, RowsAreAPlaceLikeOthers) {
  for (const int64_t dim : {48, 128}) {
    std::vector<float> values[2];
    for (const int which : {0, 1}) {
      Layer layer = which == 0 ? cpu(1, dim) : device(1, dim);
      layer.add_dense(1, 3);
      const std::vector<TokenPlace> rows = layer.rows(kPageTokens);
      std::vector<TokenMove> moves;
      for (int64_t t = 0; t < kPageTokens; ++t) moves.push_back({layer.place_of(0, 0, (t * 7) % kPageTokens), rows[static_cast<size_t>(t)]});
      layer.backend->move(kType, dim, moves);
      values[which] = layer.read(rows);
      layer.add_codes(0, 8, nullptr);
      const KvSegment& codes = layer.segments[1];
      const PageEncode job{{rows}, 1, codes.quantized, nullptr, const_cast<void*>(codes.k), codes.head_stride};
      layer.backend->encode(kType, dim, {&job, 1});
      std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size());
      const PageRead read{codes, 0, 1, 0, kPageTokens, k.data(), v.data(), 0};
      layer.backend->read(kType, dim, {&read, 1});
      layer.backend->finish();
      values[which].insert(values[which].end(), k.begin(), k.end());
      values[which].insert(values[which].end(), v.begin(), v.end());
    }
    EXPECT_EQ(values[1], values[0]);
  }
}

class CudaSummaries : public CudaFigures {
 protected:
  struct Result {
    std::vector<int32_t> pivots, group;
    std::vector<float> bias, rows, figures;
  };
  // Runs over n entries of KV head 1: a quantized page if there are more than a page holds, and single tokens, the
  // first of which is a row. The queries see all entries.
  static Result run(Layer layer, int64_t n, const SummaryRule& rule, int64_t count, EntryFigure figure) {
    const int64_t coded = n > kPageTokens ? kPageTokens : 0;
    layer.add_dense(1, 21);
    layer.add_dense(1, 22);
    layer.add_codes(0, 8, nullptr);
    std::vector<TokenPlace> places = layer.rows(1);
    const TokenMove first{layer.place_of(1, 1, 63), places[0]};
    layer.backend->move(kType, layer.dim, {&first, 1});
    for (int64_t i = 1; i < n - coded; ++i) places.push_back(layer.place_of(1, 1, i));
    SampledQueries queries;
    queries.n = rule.needs_queries() || figure == EntryFigure::kAttention ? 13 : 0;
    queries.q = random_values(queries.n * layer.dim, 31);
    for (float& q : queries.q) q *= 0.1f;
    for (int64_t i = 0; i < queries.n; ++i) queries.log_norm.push_back(5.0f + 0.1f * static_cast<float>(i));
    std::vector<float> bias;
    for (int64_t i = 0; i < n; ++i) bias.push_back(0.3f * static_cast<float>(i % 5));
    const std::span<const KvSegment> codes = std::span(layer.segments).subspan(2, coded > 0 ? 1 : 0);
    const HeadEntries entries{codes, 1, places, bias, queries.n > 0 ? &queries : nullptr};
    const std::vector<TokenPlace> to = layer.rows(std::min(count, n));
    Result result{std::vector<int32_t>(to.size()), std::vector<int32_t>(bias.size()), std::vector<float>(to.size()), {},
                  std::vector<float>(bias.size())};
    const EntrySummary summary{entries, rule, to, result.pivots.data(), result.group.data(), result.bias.data()};
    const EntryFigures figures{entries, figure, count, result.figures.data()};
    layer.backend->summarize(kType, layer.dim, {&summary, 1});
    layer.backend->find_figures(kType, layer.dim, {&figures, 1});
    layer.backend->finish();
    result.rows = layer.read(to);
    return result;
  }
};

TEST_P(CudaSummaries, AreTheCpusWithinRounding) {
  for (const auto& [n, count] : {std::pair<int64_t, int64_t>{32, 8}, {5, 1}, {75, 9}, {6, 8}}) {
    for (int pivots = 0; pivots < 4; ++pivots) {
      for (int other = 0; other < 3; ++other) {
        const SummaryRule rule{static_cast<PivotRule>(pivots), static_cast<ValueRule>(other), static_cast<BiasRule>((other + pivots) % 3)};
        const auto figure = static_cast<EntryFigure>(other);
        const Result expected = run(cpu(2, 80), n, rule, count, figure), got = run(device(2, 80), n, rule, count, figure);
        SCOPED_TRACE("n " + std::to_string(n) + " pivots " + std::to_string(pivots) + " other " + std::to_string(other));
        EXPECT_EQ(got.pivots, expected.pivots);
        EXPECT_EQ(got.group, expected.group);
        expect_near(got.bias, expected.bias, 1e-4f, 1e-4f);
        expect_near(got.rows, expected.rows, 1.0f / 128, 1e-3f);  // read through bf16
        expect_near(got.figures, expected.figures, 1e-4f, 1e-4f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaFigures, kOrders, name_of_order);
INSTANTIATE_TEST_SUITE_P(Orders, CudaSummaries, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
