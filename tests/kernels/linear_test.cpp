// Compares every instruction set with a product in double precision over the stored weights.
#include "kernels/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu_level.h"
#include "kernels/linear_format.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

constexpr float kSentinel = 12345.0f;

std::vector<float> random_floats(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns random integers around the level that stands for 0 in centred weights.
PackedMatrix random_integers(WeightType type, Minimums minimums, int64_t n, int64_t k, uint32_t seed) {
  PackedMatrix matrix = make_packed(type, n, k, minimums);
  std::mt19937 generator(seed);
  const uint32_t levels = 1u << levels_of(type).bits();
  const auto centre = static_cast<float>(levels_of(type).centre);
  float shared = 0;  // the scale of the first group of a pair
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < k / 32; ++group) {
      uint8_t q[32];
      for (uint8_t& level : q) level = static_cast<uint8_t>(generator() % levels);
      float scale = std::ldexp(static_cast<float>(1024 + generator() % 1024), -15);  // representable in f16
      float minimum = -centre * scale;
      if (type == WeightType::kMxfp4) {
        scale = std::ldexp(1.0f, static_cast<int>(generator() % 8) - 6);
        minimum = -centre * scale;
      } else if (type == WeightType::kNvfp4) {
        scale = std::ldexp(static_cast<float>(8 + generator() % 8), -4);
        minimum = std::ldexp(static_cast<float>(8 + generator() % 8), -5);
      }
      if (minimums == Minimums::kShared) {
        if (group % 2 == 1) scale = shared;
        shared = scale;
        minimum = -static_cast<float>(row % 16) * scale;
      }
      pack_group(matrix, row / 16, group, row % 16, q, scale, minimum);
    }
  }
  return matrix;
}

PackedMatrix random_blocks(WeightType type, int64_t n, int64_t k, uint32_t seed) {
  PackedMatrix matrix = make_packed(type, n, k, Minimums::kCoded);
  std::mt19937 generator(seed);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t block = 0; block < k / 256; ++block) {
      CodedBlock values;
      for (uint8_t& level : values.q) level = static_cast<uint8_t>(generator() % (1u << levels_of(type).bits()));
      for (auto& codes : values.codes) {
        for (int8_t& code : codes) code = static_cast<int8_t>(static_cast<int>(generator() % 256) - 128);
      }
      const int exponent = type == WeightType::kIq4 ? -23 : -20;  // Its levels are up to 8 times as large.
      for (float& factor : values.factors) factor = std::ldexp(static_cast<float>(1024 + generator() % 1024), exponent);
      pack_block(matrix, row / 16, block, row % 16, values);
    }
  }
  return matrix;
}

PackedMatrix random_matrix(WeightType type, Minimums minimums, int64_t n, int64_t k, uint32_t seed) {
  if (minimums == Minimums::kCoded) return random_blocks(type, n, k, seed);
  const bool fitted =
      type == WeightType::kInt4 ? minimums == Minimums::kStored : type <= WeightType::kInt8;  // f32, bf16 and int8
  if (!fitted) return random_integers(type, minimums, n, k, seed);
  PackedMatrix matrix = make_packed(type, n, k, minimums);
  for (int64_t group = 0; group * 16 < n; ++group) {
    std::vector<float> rows = random_floats(16 * k, seed + static_cast<uint32_t>(group), 0.1f);
    const int64_t used = std::min<int64_t>(16, n - group * 16);
    std::fill(rows.begin() + used * k, rows.end(), 0.0f);
    pack_lanes(matrix, group, rows.data());
  }
  return matrix;
}

// The inputs of one product, in the type that the weights require, with a gap after each row.
struct Input {
  Input(WeightType type, int64_t rows, int64_t k, uint32_t seed)
      : stride(k + 8), values(random_floats(rows * stride, seed)), bf16(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) bf16[i] = to_bf16(values[i]);
    if (type != WeightType::kF32) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = from_bf16(bf16[i]);
    }
    view.x = type == WeightType::kF32 ? static_cast<const void*>(values.data()) : bf16.data();
    view.rows = rows;
    view.x_stride = stride;
  }

  LinearInput row(int64_t i) const {
    const size_t size = view.x == static_cast<const void*>(values.data()) ? sizeof(float) : sizeof(uint16_t);
    LinearInput one = view;
    one.x = static_cast<const std::byte*>(view.x) + static_cast<size_t>(i * stride) * size;
    one.rows = 1;
    return one;
  }

  int64_t stride;
  std::vector<float> values;
  std::vector<uint16_t> bf16;
  LinearInput view;
};

// Returns x as the integer types see it: rounded to 127 steps per group of 32.
std::vector<double> seen_by(WeightType type, const float* x, int64_t k) {
  std::vector<double> seen(x, x + k);
  if (levels_of(type).bits() == 0) return seen;
  for (int64_t begin = 0; begin < k; begin += 32) {
    float largest = 0;
    for (int64_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (int64_t i = begin; i < begin + 32; ++i) {
      seen[static_cast<size_t>(i)] = static_cast<double>(std::nearbyint(x[i] * inverse)) * (largest / 127.0f);
    }
  }
  return seen;
}

// Results [rows, N], and for each the sum of magnitudes, to which rounding errors are proportional.
struct Reference {
  std::vector<double> y, magnitude;
};

Reference reference(const PackedMatrix& matrix, const Input& input) {
  const int64_t k = matrix.in_features;
  Reference result;
  std::vector<float> w(static_cast<size_t>(matrix.out_features * k));
  for (int64_t n = 0; n < matrix.out_features; ++n) unpack_row(matrix, n, w.data() + n * k);
  for (int64_t row = 0; row < input.view.rows; ++row) {
    const std::vector<double> x = seen_by(matrix.type, input.values.data() + row * input.stride, k);
    for (int64_t n = 0; n < matrix.out_features; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double product = x[static_cast<size_t>(i)] * w[static_cast<size_t>(n * k + i)];
        sum += product;
        magnitude += std::fabs(product);
      }
      result.y.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  }
  return result;
}

struct Case {
  CpuLevel level;
  WeightType type;
  Minimums minimums;
};

class LinearTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().level > detected_cpu_level()) {
      RecordProperty("not_available", std::string(name(GetParam().level)));
      available_ = false;
      return;
    }
    set_cpu_level(GetParam().level);
  }
  void TearDown() override { set_cpu_level(detected_cpu_level()); }

  std::vector<float> run(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input,
                         const float* bias = nullptr) {
    const int64_t stride = matrix.out_features + 3;
    std::vector<float> out(static_cast<size_t>(input.rows * stride), kSentinel);
    linear(pool, matrix, input, {.out = out.data(), .stride = stride, .epilogue = Epilogue::kStore, .bias = bias},
           scratch_);
    return out;
  }

  // Inputs must be multiples of unit(). inputs(k) rounds k up to one.
  int64_t unit() const {
    if (GetParam().minimums == Minimums::kCoded) return 256;
    if (GetParam().minimums == Minimums::kShared) return 64;
    return GetParam().type == WeightType::kF32 ? 1 : GetParam().type == WeightType::kBf16 ? 2 : 32;
  }
  int64_t inputs(int64_t k) const { return (k + unit() - 1) / unit() * unit(); }

  bool available_ = true;
  LinearScratch scratch_;
};

TEST_P(LinearTest, MatchesReferenceOverOddShapes) {
  if (!available_) return;
  const WeightType type = GetParam().type;
  ThreadPool pool(2);
  for (const int64_t n : {1, 15, 16, 17, 48, 80, 131}) {
    for (const int64_t k : std::set<int64_t>{unit(), 3 * unit(), inputs(96), inputs(160)}) {
      const PackedMatrix matrix = random_matrix(type, GetParam().minimums, n, k, 7);
      for (const int64_t rows : {1, 2, 3, 5, 7, 9, 14, 15, 29, 33, 47}) {
        const Input input(type, rows, k, 11);
        const std::vector<float> out = run(pool, matrix, input.view);
        const Reference expected = reference(matrix, input);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t i = 0; i < n; ++i) {
            const auto at = static_cast<size_t>(row * n + i);
            ASSERT_NEAR(out[static_cast<size_t>(row * (n + 3) + i)], expected.y[at],
                        1e-6 * expected.magnitude[at] * std::sqrt(static_cast<double>(k)) + 1e-6)
                << "n " << n << " k " << k << " rows " << rows << " at " << row << ", " << i;
          }
          for (int64_t i = n; i < n + 3; ++i) ASSERT_EQ(out[static_cast<size_t>(row * (n + 3) + i)], kSentinel);
        }
      }
    }
  }
}

TEST_P(LinearTest, RowIsTheSameBitsInAnyBatchAndAnyNumberOfThreads) {
  if (!available_) return;
  const WeightType type = GetParam().type;
  const bool reference_level = GetParam().level == CpuLevel::kScalar;
  ThreadPool one(1), three(3);
  const int64_t n = 208, k = inputs(320);
  const PackedMatrix matrix = random_matrix(type, GetParam().minimums, n, k, 3);
  const int64_t most = reference_level ? 130 : 512;
  const Input input(type, most, k, 5);
  const int64_t stride = n + 3;
  std::vector<float> alone;
  for (int64_t row = 0; row < most; ++row) {
    const std::vector<float> out = run(one, matrix, input.row(row));
    alone.insert(alone.end(), out.begin(), out.end());
  }
  std::vector<int64_t> batches = {most};
  for (int64_t rows = 1; rows <= 40; ++rows) batches.push_back(rows);
  for (const int64_t rows : batches) {
    LinearInput view = input.view;
    view.rows = rows;
    for (ThreadPool* pool : {&one, &three}) {
      const std::vector<float> out = run(*pool, matrix, view);
      ASSERT_EQ(std::memcmp(out.data(), alone.data(), static_cast<size_t>(rows * stride) * sizeof(float)), 0)
          << rows << " rows on " << pool->size() << " threads";
    }
  }
}

// Centred integers store no minimums. This must not change a bit.
TEST_P(LinearTest, CentredIntegersGiveTheSameBitsAsTheirMinimums) {
  if (!available_ || GetParam().minimums != Minimums::kCentred || levels_of(GetParam().type).table != nullptr) return;
  ThreadPool pool(2);
  for (const int64_t k : {32, 64, 224}) {
    const PackedMatrix centred = random_integers(GetParam().type, Minimums::kCentred, 80, k, 4);
    const PackedMatrix stored = random_integers(GetParam().type, Minimums::kStored, 80, k, 4);
    EXPECT_LT(centred.bytes(), stored.bytes() + (k == 32 ? 1 : 0));
    for (const int64_t rows : {1, 3, 12, 40}) {
      const Input input(GetParam().type, rows, k, 17);
      EXPECT_EQ(run(pool, centred, input.view), run(pool, stored, input.view)) << "k " << k << " rows " << rows;
    }
  }
}

// Groups of rows and parts of matrices, as experts have them: each row has the bits that linear() gives it alone.
TEST_P(LinearTest, GroupsGiveTheBitsOfSingleProducts) {
  if (!available_) return;
  const WeightType type = GetParam().type;
  ThreadPool one(1), three(3);
  constexpr int32_t kGroups = 5;
  constexpr int64_t kEach = 2, kOutputs = 48;
  const int64_t k = inputs(192), rows = 23;
  const PackedMatrix stacked = random_matrix(type, GetParam().minimums, kGroups * kOutputs, k, 3);
  const PackedMatrix other = random_matrix(type, GetParam().minimums, kOutputs, k, 4);
  const Input input(type, rows, k, 5);
  std::vector<LinearPlace> places;
  std::vector<int32_t> counts(kGroups + 1);
  for (int32_t row = 0; row < rows; ++row) {
    for (const int32_t group : {row % 3, row % 2 == 0 ? 3 : kGroups}) {
      places.push_back({group, counts[static_cast<size_t>(group)]++});
    }
  }
  std::vector<std::vector<float>> results;  // [rows of the group, kOutputs]
  for (const int32_t count : counts) results.emplace_back(static_cast<size_t>(count * kOutputs));
  std::vector<LinearGroup> groups;  // Group 4 has no rows.
  for (int32_t group = 0; group <= kGroups; ++group) {
    LinearInput part = input.view;
    part.rows = counts[static_cast<size_t>(group)];
    groups.push_back({group < kGroups ? &stacked : &other,
                      group < kGroups ? group * kOutputs : 0,
                      kOutputs,
                      part,
                      {results[static_cast<size_t>(group)].data(), kOutputs}});
  }
  for (ThreadPool* pool : {&one, &three}) {
    for (auto& result : results) std::ranges::fill(result, kSentinel);
    linear_groups(*pool, groups, places, rows, scratch_);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> whole = run(one, stacked, input.row(row)), rest = run(one, other, input.row(row));
      for (int64_t i = 0; i < kEach; ++i) {
        const auto [group, place] = places[static_cast<size_t>(row * kEach + i)];
        const float* const expected = group < kGroups ? whole.data() + group * kOutputs : rest.data();
        const float* const found = results[static_cast<size_t>(group)].data() + place * kOutputs;
        ASSERT_EQ(std::memcmp(found, expected, kOutputs * sizeof(float)), 0) << "row " << row << " group " << group;
      }
    }
  }
  // Without places, each group has its own input.
  for (size_t group = 0; group < groups.size(); ++group) {
    groups[group].input = input.row(static_cast<int64_t>(group));
    groups[group].input.rows = 2;
    results[group].assign(2 * kOutputs, kSentinel);
    groups[group].output.out = results[group].data();
  }
  linear_groups(three, groups, {}, 0, scratch_);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (int64_t row = 0; row < 2; ++row) {
      const std::vector<float> alone = run(one, *groups[group].matrix, input.row(static_cast<int64_t>(group) + row));
      ASSERT_EQ(std::memcmp(results[group].data() + row * kOutputs, alone.data() + groups[group].first_output,
                            kOutputs * sizeof(float)),
                0);
    }
  }
}

TEST(LinearGroups, PartsOfAMatrixAreInRange) {
  const PackedMatrix matrix = make_packed(WeightType::kF32, 64, 8);
  ThreadPool pool(1);
  LinearScratch scratch;
  std::vector<float> x(8), out(64);
  const auto error = [&](int64_t first, int64_t outputs, Epilogue epilogue) {
    const LinearGroup group{&matrix, first, outputs, {x.data(), 1, 8}, {out.data(), 64, epilogue}};
    try {
      linear_groups(pool, {&group, 1}, {}, 0, scratch);
    } catch (const std::invalid_argument& failure) {
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(16, 48, Epilogue::kStore), "no error");
  EXPECT_EQ(error(32, 32, Epilogue::kSwiGlu), "no error");
  for (const auto& [first, outputs] : {std::pair<int64_t, int64_t>{8, 16}, {48, 32}, {-16, 16}}) {
    EXPECT_THAT(error(first, outputs, Epilogue::kStore), testing::HasSubstr("linear: expected rows of [0, 64) from a"));
  }
  EXPECT_THAT(error(16, 32, Epilogue::kSwiGlu), testing::HasSubstr("from a multiple of 32"));
}

class FloatRows final : public EncodedRows {
 public:
  FloatRows(int64_t n, int64_t k) : k_(k), values_(random_floats(n * k, 6)) {}
  int64_t bytes() const override { return static_cast<int64_t>(values_.size() * sizeof(float)); }
  std::vector<std::span<const std::byte>> memory() const override { return {std::as_bytes(std::span(values_))}; }
  void expand(int64_t row, float* out) const override { std::copy_n(values_.data() + row * k_, k_, out); }
  const float* data() const { return values_.data(); }

 private:
  int64_t k_;
  std::vector<float> values_;
};

// Encoded rows are products in f32, at any K, with the same bits in any batch.
TEST_P(LinearTest, EncodedRowsAreProductsInF32) {
  if (!available_ || GetParam().type != WeightType::kF32) return;
  ThreadPool one(1), three(3);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 7}, {160, 96}}) {
    const auto rows = std::make_shared<FloatRows>(n, k);
    PackedMatrix matrix = make_encoded(rows, n, k);
    EXPECT_EQ(matrix.bytes(), n * k * 4);
    const Input input(WeightType::kBf16, 20, k, 14);
    const Reference expected = reference(matrix, input);
    const std::vector<float> together = run(three, matrix, input.view);
    for (int64_t row = 0; row < 20; ++row) {
      const std::vector<float> alone = run(one, matrix, input.row(row));
      ASSERT_EQ(std::memcmp(alone.data(), together.data() + row * (n + 3), n * sizeof(float)), 0) << "row " << row;
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(row * n + i);
        ASSERT_NEAR(alone[static_cast<size_t>(i)], expected.y[at], 1e-6 * expected.magnitude[at]);
      }
    }
    for (int64_t i = 0; i < n; ++i) matrix.row_factors.push_back(static_cast<float>(1 << i % 5));
    const std::vector<float> scaled = run(one, matrix, input.row(0));
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(scaled[static_cast<size_t>(i)], together[static_cast<size_t>(i)] * matrix.row_factors[i]);
  }
}

TEST_P(LinearTest, InputsMayHaveAnyOrder) {
  if (!available_ || GetParam().type != WeightType::kInt4) return;
  ThreadPool pool(2);
  const int64_t n = 48, k = inputs(96);
  PackedMatrix matrix = random_matrix(GetParam().type, GetParam().minimums, n, k, 41);
  Input input(GetParam().type, 3, k, 42);
  const std::vector<float> expected = run(pool, matrix, input.view);
  Input moved = input;
  for (int64_t i = 0; i < k; ++i) matrix.input_order.push_back(static_cast<int32_t>(i * 5 % k));
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < k; ++i)
      moved.bf16[row * input.stride + matrix.input_order[i]] = input.bf16[row * input.stride + i];
  }
  moved.view.x = moved.bf16.data();
  EXPECT_EQ(run(pool, matrix, moved.view), expected);
}

// Products and sums near the smallest normal float show whether an instruction treats denormals as zeros.
TEST_P(LinearTest, TinyValuesAreTheSameBitsInAnyBatch) {
  if (!available_ || GetParam().type != WeightType::kBf16) return;
  ThreadPool pool(2);
  const int64_t n = 64, k = 96, rows = 20;
  PackedMatrix matrix = make_packed(WeightType::kBf16, n, k);
  for (int64_t group = 0; group < n / 16; ++group) {
    pack_lanes(matrix, group, random_floats(16 * k, 9 + static_cast<uint32_t>(group), 1e-19f).data());
  }
  Input input(WeightType::kBf16, rows, k, 13);
  for (uint16_t& value : input.bf16) value = to_bf16(from_bf16(value) * 1e-19f);
  const std::vector<float> together = run(pool, matrix, input.view);
  EXPECT_TRUE(std::any_of(together.begin(), together.end(), [](float y) { return y != 0 && y != kSentinel; }));
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> alone = run(pool, matrix, input.row(row));
    ASSERT_EQ(std::memcmp(alone.data(), together.data() + row * (n + 3), n * sizeof(float)), 0) << "row " << row;
  }
}

TEST_P(LinearTest, AddsBiasAndResidual) {
  if (!available_) return;
  ThreadPool pool(2);
  const int64_t n = 45, k = inputs(64), rows = 6;
  const PackedMatrix matrix = random_matrix(GetParam().type, GetParam().minimums, n, k, 21);
  const Input input(GetParam().type, rows, k, 22);
  const std::vector<float> bias = random_floats(n, 23);
  const std::vector<float> plain = run(pool, matrix, input.view);
  const std::vector<float> biased = run(pool, matrix, input.view, bias.data());
  const std::vector<float> residual = random_floats(rows * n, 24);
  std::vector<float> out = residual;
  linear(pool, matrix, input.view, {.out = out.data(), .stride = n, .epilogue = Epilogue::kAdd, .bias = bias.data()},
         scratch_);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const float y = plain[static_cast<size_t>(row * (n + 3) + i)] + bias[static_cast<size_t>(i)];
      ASSERT_EQ(biased[static_cast<size_t>(row * (n + 3) + i)], y);
      const auto at = static_cast<size_t>(row * n + i);
      ASSERT_EQ(out[at], residual[at] + y);
    }
  }
}

TEST_P(LinearTest, GatesOfInterleavedGateAndUp) {
  if (!available_) return;
  const WeightType type = GetParam().type;
  ThreadPool pool(2);
  const int64_t n = 160, k = inputs(64);
  // Inputs that are large enough for gates far out on both sides.
  const PackedMatrix matrix = random_matrix(type, GetParam().minimums, n, k, 31);
  for (const int64_t rows : {1, 4, 8, 13, 16, 31}) {
    Input input(type, rows, k, 32);
    for (size_t i = 0; i < input.values.size(); ++i) {
      input.bf16[i] = to_bf16(input.values[i] * 64);
      input.values[i] *= 64;
    }
    const std::vector<float> y = run(pool, matrix, input.view);
    for (const Epilogue epilogue : {Epilogue::kSwiGlu, Epilogue::kGeGlu, Epilogue::kClampedSwiGlu}) {
      std::vector<float> out(static_cast<size_t>(rows * n / 2));
      std::vector<uint16_t> out_bf16(out.size());
      void* target = type == WeightType::kF32 ? static_cast<void*>(out.data()) : out_bf16.data();
      linear(pool, matrix, input.view, {.out = target, .stride = n / 2, .epilogue = epilogue, .bias = nullptr},
             scratch_);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < n / 2; ++i) {
          double gate = y[static_cast<size_t>(row * (n + 3) + i / 16 * 32 + i % 16)];
          double up = y[static_cast<size_t>(row * (n + 3) + i / 16 * 32 + 16 + i % 16)];
          if (epilogue == Epilogue::kClampedSwiGlu) {
            gate = std::min(gate, 7.0);
            up = 1 + std::clamp(up, -7.0, 7.0);
          }
          const double cubic = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
          const double activated = epilogue == Epilogue::kSwiGlu  ? gate / (1 + std::exp(-gate))
                                   : epilogue == Epilogue::kGeGlu ? gate / (1 + std::exp(-2 * cubic))
                                                                  : gate / (1 + std::exp(-1.702 * gate));
          const double expected = activated * up;
          const auto at = static_cast<size_t>(row * n / 2 + i);
          // The exponent's own rounding grows with it.
          const double rounding = epilogue == Epilogue::kSwiGlu ? 1e-6 : 1e-5;
          if (type == WeightType::kF32) {
            ASSERT_NEAR(out[at], expected, rounding * std::fabs(expected) + 1e-30) << "gate " << gate;
          } else {
            // Half a unit in the last of bf16's 8 bits.
            ASSERT_NEAR(from_bf16(out_bf16[at]), expected, 0.00392 * std::fabs(expected) + 1e-30) << "gate " << gate;
          }
        }
      }
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.level)) + "_" + std::string(name(info.param.type)) +
         (info.param.minimums == Minimums::kCentred  ? "_centred"
          : info.param.minimums == Minimums::kCoded  ? "_coded"
          : info.param.minimums == Minimums::kShared ? "_shared"
                                                     : "");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (CpuLevel level :
       {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni, CpuLevel::kAmx}) {
    for (WeightType type :
         {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt5, WeightType::kInt4}) {
      cases.push_back({level, type, Minimums::kStored});
    }
    for (WeightType type : {WeightType::kInt8, WeightType::kInt5, WeightType::kInt4, WeightType::kIq4,
                            WeightType::kMxfp4, WeightType::kNvfp4}) {
      cases.push_back({level, type, Minimums::kCentred});
    }
    cases.push_back({level, WeightType::kInt4, Minimums::kShared});
    for (WeightType type : {WeightType::kInt6, WeightType::kInt5, WeightType::kInt4, WeightType::kInt3,
                            WeightType::kInt2, WeightType::kIq4}) {
      cases.push_back({level, type, Minimums::kCoded});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Levels, LinearTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace smartkv::kernels
