// attention_mass(): where probe queries attend.
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/attention_sequence.h"
#include "tests/kernels/level_test.h"

namespace smartkv::kernels {
namespace {

std::vector<float> run_mass(ThreadPool& pool, const Sequence& sequence, int64_t n) {
  return run_mass(sequence, n, [&](const AttentionMassTask& task) {
    AttentionScratch scratch;
    attention_mass(pool, sequence.shape, {&task, 1}, scratch);
  });
}

class AttentionMass : public LevelTest {
 protected:
  ThreadPool pool{2};
};

TEST_P(AttentionMass, EqualsTheDefinition) {
  for (const Shape shape : {Shape{9, 3, 64}, Shape{2, 2, 128}, Shape{50, 1, 32}, Shape{2, 1, 80}}) {
    for (const auto& [tokens, n] : {std::pair<int64_t, int64_t>{1, 1}, {64, 3}, {65, 2}, {300, 1}, {401, 19}}) {
      const Bias bias = tokens % 2 == 0 ? Bias::kNone : Bias::kSome;
      const Sequence sequence(shape, type(), tokens, static_cast<uint64_t>(tokens), mass_formats(shape.head_dim), bias);
      const std::vector<double> expected = sequence.mass_reference(n);
      const std::vector<float> mass = run_mass(pool, sequence, n);
      ASSERT_EQ(mass.size(), expected.size());
      EXPECT_LT(relative_error(expected, [&](size_t i) { return mass[i]; }), 3e-4)
          << shape.n_heads << "/" << shape.n_kv_heads << " tokens " << tokens << " n " << n;
    }
  }
}

TEST_P(AttentionMass, SinksTakeTheirShare) {
  const std::vector<float> sinks = {-90.0f, -3.0f, 0.0f, 0.7f, 2.0f, 5.0f, 9.0f, 20.0f, 95.0f};
  Sequence sequence({9, 3, 64}, type(), 401, 6, mass_formats(64), Bias::kSome);
  sequence.shape.sinks = sinks.data();
  const std::vector<double> expected = sequence.mass_reference(19);
  const std::vector<float> mass = run_mass(pool, sequence, 19);
  ASSERT_EQ(mass.size(), expected.size());
  EXPECT_LT(relative_error(expected, [&](size_t i) { return mass[i]; }), 3e-4);
}

TEST_P(AttentionMass, IsZeroBeforeAWindow) {
  for (const int64_t window : {1, 64, 90, 250, 400}) {
    Sequence sequence({9, 3, 64}, type(), 401, static_cast<uint64_t>(window), mass_formats(64), Bias::kSome);
    sequence.shape.window = window;
    const std::vector<double> expected = sequence.mass_reference(19);
    const std::vector<float> mass = run_mass(pool, sequence, 19);
    ASSERT_EQ(mass.size(), expected.size());
    EXPECT_LT(relative_error(expected, [&](size_t i) { return mass[i]; }), 3e-4) << "window " << window;
    for (size_t i = 0; i < mass.size(); ++i)
      ASSERT_FALSE(expected[i] == 0.0 && mass[i] != 0.0f) << "window " << window << ", " << i;
  }
}

TEST_P(AttentionMass, AQuerysBitsDependOnItsOwnSequenceOnly) {
  const Sequence sequence({9, 3, 64}, type(), 500, 3, mass_formats(64)),
      other({9, 3, 64}, type(), 333, 4, mass_formats(64));
  ThreadPool one(1);
  const std::vector<float> all = run_mass(pool, sequence, 37);
  EXPECT_EQ(all, run_mass(one, sequence, 37));
  for (const int64_t n : {1, 2, 16, 33}) {
    const std::vector<float> some = run_mass(pool, sequence, n);
    EXPECT_EQ(some, std::vector<float>(all.end() - static_cast<int64_t>(some.size()), all.end())) << n << " queries";
  }
  std::vector<float> a(3 * 500), b(3 * (332 + 333));
  const AttentionMassTask tasks[] = {sequence.mass_task(1, a.data()), other.mass_task(2, b.data())};
  AttentionScratch scratch;
  attention_mass(pool, sequence.shape, tasks, scratch);
  EXPECT_EQ(a, std::vector<float>(all.end() - 1500, all.end()));
  EXPECT_EQ(b, run_mass(one, other, 2));
}

INSTANTIATE_TEST_SUITE_P(Levels, AttentionMass, kLevels, name_of_level);

}  // namespace
}  // namespace smartkv::kernels
