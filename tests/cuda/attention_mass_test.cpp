// attention_mass() of kernels/cuda on the emulator.
#include <string>

#include <gtest/gtest.h>

#include "kernels/cuda/attention.h"
#include "tests/cuda/device_test.h"
#include "tests/kernels/attention_sequence.h"

namespace smartkv::kernels {
namespace {

std::vector<float> run_mass(const Sequence& sequence, int64_t n) {
  return run_mass(sequence, n, [&](const AttentionMassTask& task) {
    cuda::AttentionWorkspace workspace;
    cuda::attention_mass(sequence.shape, {&task, 1}, workspace, nullptr);
    finish();
  });
}

class CudaAttentionMass : public OrderTest {};

TEST_P(CudaAttentionMass, EqualsTheDefinition) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{2, 2, 128}, Shape{50, 1, 32}, Shape{2, 1, 80}}) {
    for (const auto& [tokens, n] :
         {std::pair<int64_t, int64_t>{1, 1}, {64, 3}, {65, 2}, {300, 1}, {401, 19}, {1100, 2}}) {
      const Bias bias = tokens % 2 == 0 ? Bias::kNone : Bias::kSome;
      const Sequence sequence(shape, KvType::kBf16, tokens, static_cast<uint64_t>(tokens), mass_formats(shape.head_dim),
                              bias);
      const std::vector<double> expected = sequence.mass_reference(n);
      const std::vector<float> mass = run_mass(sequence, n);
      ASSERT_EQ(mass.size(), expected.size());
      // Scores at dense pages are exact up to f32. At quantized pages, the queries times the scales are rounded to f16.
      const double tolerance = shape.head_dim == 32 || tokens < 2 * kPageTokens ? 1e-5 : 1e-3;
      EXPECT_LT(relative_error(expected, [&](size_t i) { return mass[i]; }), tolerance)
          << shape.n_heads << "/" << shape.n_kv_heads << " tokens " << tokens << " n " << n;
    }
  }
}

// A KV head sees nothing of another head's pages, and its mass adds up to 1.
TEST_P(CudaAttentionMass, TokensOfOtherHeadsHaveNone) {
  const Sequence sequence({2, 2, 64}, KvType::kBf16, 5 * kPageTokens, 3, mass_formats(64));
  std::vector<KvSegment> segments = sequence.segments;
  segments[1] = segments[1].of_head(0, 0);
  segments[2] = segments[2].of_head(1, 1);
  constexpr int64_t kQueries = 3;
  AttentionMassTask task = sequence.mass_task(kQueries, nullptr);
  task.segments = segments;
  std::vector<float> mass(static_cast<size_t>(attention_mass_floats(sequence.shape, task)), -1.0f);
  task.mass = mass.data();
  cuda::AttentionWorkspace workspace;
  cuda::attention_mass(sequence.shape, {&task, 1}, workspace, nullptr);
  finish();
  const float* p = mass.data();
  for (int64_t query = 0; query < kQueries; ++query) {
    const int64_t seen = 5 * kPageTokens - (kQueries - 1 - query);
    for (int64_t head = 0; head < 2; ++head, p += seen) {
      double sum = 0;
      for (int64_t t = 0; t < seen; ++t) {
        sum += p[t];
        if (t / kPageTokens == (head == 0 ? 2 : 1)) {
          ASSERT_EQ(p[t], 0.0f) << head << ", " << t;
        }
      }
      EXPECT_NEAR(sum, 1.0, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaAttentionMass, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
