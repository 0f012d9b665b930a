#include "kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/cpu_level.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/attention_sequence.h"
#include "tests/kernels/level_test.h"

namespace smartkv::kernels {
namespace {

class AttentionLevels : public LevelTest {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) <= detected_cpu_level()) set_cpu_level(std::get<0>(GetParam()));
  }
};

TEST_P(AttentionLevels, EqualsTheDefinition) {
  const KvType type = std::get<1>(GetParam());
  ThreadPool pool(2);
  for (const Shape shape :
       {Shape{9, 3, 64}, Shape{4, 4, 128}, Shape{8, 1, 32}, Shape{2, 1, 80}, Shape{3, 1, 16}, Shape{2, 2, 48}}) {
    for (const int64_t tokens : {1, 2, 17, 64, 65, 300}) {
      const Bias bias = tokens % 2 == 0 ? Bias::kNone : Bias::kSome;
      const Sequence sequence(shape, type, tokens, static_cast<uint64_t>(tokens), {std::nullopt}, bias);
      const int64_t n = std::min<int64_t>(tokens, 21);
      const std::vector<double> expected = sequence.reference(n);
      const std::vector<uint8_t> out = run_attention(pool, sequence, n);
      const double error = relative_error(expected, [&](size_t i) { return element(out, type, i); });
      // bf16 rounds the probabilities and the result, by at most 2^-9 each.
      EXPECT_LT(error, type == KvType::kBf16 ? 4e-3 : 2e-6)
          << "heads " << shape.n_heads << "/" << shape.n_kv_heads << " dim " << shape.head_dim << " tokens " << tokens;
    }
  }
}

// A page's slots may hold anything where the sequence has no token.
TEST_P(AttentionLevels, ReadsNothingPastTheTokens) {
  const KvType type = std::get<1>(GetParam());
  ThreadPool pool(2);
  for (const Shape shape : {Shape{9, 3, 64}, Shape{8, 1, 32}, Shape{2, 1, 80}, Shape{3, 1, 16}, Shape{2, 2, 256}}) {
    for (const int64_t tokens : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 65, 97}) {
      Sequence sequence(shape, type, tokens, static_cast<uint64_t>(tokens));
      const auto mass = [&](const AttentionMassTask& task) {
        AttentionScratch scratch;
        attention_mass(pool, sequence.shape, {&task, 1}, scratch);
      };
      for (const int64_t n : {int64_t{1}, std::min<int64_t>(tokens, 21)}) {
        poison_slots(sequence, 0);
        const std::vector<uint8_t> expected = run_attention(pool, sequence, n);
        const std::vector<float> expected_mass = run_mass(sequence, n, mass);
        for (const uint32_t poison : kPoisons) {
          poison_slots(sequence, poison);
          EXPECT_EQ(run_attention(pool, sequence, n), expected) << tokens << " tokens, " << n << " queries, " << poison;
          EXPECT_EQ(run_mass(sequence, n, mass), expected_mass) << tokens << " tokens, " << n << " queries, " << poison;
        }
      }
    }
  }
}

TEST_P(AttentionLevels, ARowsBitsDependOnItsOwnSequenceOnly) {
  const KvType type = std::get<1>(GetParam());
  const Sequence sequence({9, 3, 64}, type, 1100, 7), other({9, 3, 64}, type, 333, 8);
  ThreadPool one(1), two(2), five(5);
  const std::vector<uint8_t> all = run_attention(two, sequence, 37);
  const size_t row = all.size() / 37;
  EXPECT_EQ(all, run_attention(one, sequence, 37));
  EXPECT_EQ(all, run_attention(five, sequence, 37));
  for (const int64_t n : {1, 2, 5, 16, 33}) {
    const std::vector<uint8_t> some = run_attention(two, sequence, n);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
  }
  // In one call with another sequence.
  std::vector<uint8_t> a(row), b(3 * row);
  const AttentionTask tasks[] = {sequence.task(1, a.data()), other.task(3, b.data())};
  AttentionScratch scratch;
  attention(two, sequence.shape, tasks, scratch);
  EXPECT_EQ(0, std::memcmp(a.data(), all.data() + 36 * row, row));
  EXPECT_EQ(b, run_attention(one, other, 3));
}

// Pages that tasks share are read once for all of them. This must not change a bit.
TEST_P(AttentionLevels, SharedPagesChangeNoBit) {
  const KvType type = std::get<1>(GetParam());
  const QuantizedLayout four{uniform_runs(64, 4), uniform_runs(kPageTokens, 4)};
  const PageFormats formats[] = {{std::nullopt}, {std::nullopt, four}};
  for (const Shape shape : {Shape{9, 3, 64}, Shape{8, 1, 64}}) {
    for (const PageFormats& format : formats) {
      const Sequence prefix(shape, type, 700, 3, format, Bias::kSome);
      constexpr int64_t kTasks = 20;  // more rows than a block has
      std::vector<Sequence> own;
      own.reserve(kTasks);
      std::vector<std::vector<KvSegment>> segments;
      std::vector<AttentionTask> tasks;
      std::vector<std::vector<uint8_t>> out, alone;
      for (int64_t i = 0; i < kTasks; ++i) own.emplace_back(shape, type, 20 + 17 * i, static_cast<uint64_t>(10 + i));
      for (int64_t i = 0; i < kTasks; ++i) {
        // Some tasks diverge in the middle of a split, and task 7 shares nothing.
        const auto shared = i == 7 ? prefix.segments.begin() : prefix.segments.begin() + (i % 3 == 0 ? 10 : 9);
        auto& of = segments.emplace_back(prefix.segments.begin(), shared);
        of.insert(of.end(), own[static_cast<size_t>(i)].segments.begin(), own[static_cast<size_t>(i)].segments.end());
      }
      for (int64_t i = 0; i < kTasks; ++i) {
        const int64_t n = i % 5 == 4 ? 3 : 1;
        const size_t bytes = static_cast<size_t>(n * shape.n_heads * shape.head_dim) * (type == KvType::kBf16 ? 2 : 4);
        out.emplace_back(bytes);
        alone.emplace_back(bytes);
        tasks.push_back(own[static_cast<size_t>(i)].task(n, nullptr));
        tasks.back().segments = segments[static_cast<size_t>(i)];
      }
      for (const int threads : {1, 2}) {
        ThreadPool pool(threads);
        AttentionScratch scratch;
        for (size_t i = 0; i < tasks.size(); ++i) {
          tasks[i].out = alone[i].data();
          attention(pool, prefix.shape, {&tasks[i], 1}, scratch);
        }
        for (size_t i = 0; i < tasks.size(); ++i) tasks[i].out = out[i].data();
        attention(pool, prefix.shape, tasks, scratch);
        for (size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(out[i], alone[i]) << "task " << i;
        const auto shares = [](const AttentionScratch::Item& item) { return item.n_members > 1; };
        EXPECT_TRUE(std::any_of(scratch.items.begin(), scratch.items.end(), shares));
      }
    }
  }
}

// Compares attention over dense and over mixed pages with its definition. set: changes the shape.
void expect_the_definition(KvType type, uint64_t seed, const std::function<void(AttentionShape*)>& set) {
  const PageFormats formats[] = {{std::nullopt},
                                 {QuantizedLayout{uniform_runs(64, 8), uniform_runs(kPageTokens, 8)}, std::nullopt}};
  ThreadPool pool(2);
  for (const PageFormats& format : formats) {
    Sequence sequence({9, 3, 64}, type, 360, seed, format, Bias::kSome);
    set(&sequence.shape);
    const std::vector<double> expected = sequence.reference(37);
    const std::vector<uint8_t> out = run_attention(pool, sequence, 37);
    EXPECT_LT(relative_error(expected, [&](size_t i) { return element(out, type, i); }),
              type == KvType::kBf16 ? 4e-3 : 5e-4);
  }
}

TEST_P(AttentionLevels, SoftCapsEqualTheDefinition) {
  for (const float cap : {0.3f, 2.0f, 50.0f}) {
    SCOPED_TRACE(cap);
    expect_the_definition(std::get<1>(GetParam()), static_cast<uint64_t>(10 * cap),
                          [cap](AttentionShape* shape) { shape->soft_cap = cap; });
  }
}

// Of the sinks some are far below the scores, some among them, and some far above.
TEST_P(AttentionLevels, SinksEqualTheDefinition) {
  const std::vector<float> sinks = {-90.0f, -3.0f, 0.0f, 0.7f, 2.0f, 5.0f, 9.0f, 20.0f, 95.0f};
  for (const int64_t window : {0, 70}) {
    SCOPED_TRACE(window);
    expect_the_definition(std::get<1>(GetParam()), static_cast<uint64_t>(3 + window), [&](AttentionShape* shape) {
      shape->sinks = sinks.data();
      shape->window = window;
    });
  }
}

TEST_P(AttentionLevels, SlidingWindowsEqualTheDefinition) {
  for (const int64_t window : {1, 17, 63, 64, 65, 100, 300, 359, 360, 400}) {
    SCOPED_TRACE(window);
    expect_the_definition(std::get<1>(GetParam()), static_cast<uint64_t>(window),
                          [window](AttentionShape* shape) { shape->window = window; });
  }
}

// A row's bits must not depend on other rows of its block, nor on tasks that share its first pages.
TEST_P(AttentionLevels, SlidingWindowsKeepARowsBitsItsOwn) {
  const KvType type = std::get<1>(GetParam());
  ThreadPool one(1), two(2);
  for (const int64_t window : {5, 70, 400, 1100}) {
    Sequence sequence({9, 3, 64}, type, 1100, 7), longer({9, 3, 64}, type, 90, 8);
    sequence.shape.window = window;
    const std::vector<uint8_t> all = run_attention(two, sequence, 37);
    const size_t row = all.size() / 37;
    EXPECT_EQ(all, run_attention(one, sequence, 37));
    for (const int64_t n : {1, 2, 16, 33}) {
      const std::vector<uint8_t> some = run_attention(two, sequence, n);
      EXPECT_EQ(0, std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size())) << n << " queries";
    }
    std::vector<KvSegment> more(sequence.segments.begin(), sequence.segments.begin() + 16);
    more.insert(more.end(), longer.segments.begin(), longer.segments.end());
    std::vector<uint8_t> a(row), b(row), alone(row);
    AttentionTask tasks[] = {sequence.task(1, a.data()), longer.task(1, b.data())};
    tasks[1].segments = more;
    AttentionScratch scratch;
    attention(two, sequence.shape, tasks, scratch);
    EXPECT_EQ(0, std::memcmp(a.data(), all.data() + 36 * row, row)) << "window " << window;
    tasks[1].out = alone.data();
    attention(two, sequence.shape, {&tasks[1], 1}, scratch);
    EXPECT_EQ(b, alone) << "window " << window;
  }
}

// Each KV head has pages of its own beside the pages of all heads. The result must be as if the head were alone with
// its pages.
void expect_heads_to_pass_over_others(KvType type, const PageFormats& formats) {
  const Shape shape{6, 3, 64};
  constexpr int64_t kHeads = 3, kQueries = 5, kPages = 11;
  const Sequence sequence(shape, type, kPages * kPageTokens + 30, 5, formats);
  std::vector<KvSegment> mixed(sequence.segments.begin(), sequence.segments.begin() + 2);
  std::vector<std::vector<KvSegment>> of_head(kHeads, mixed);
  for (int64_t page = 2; page < kPages; ++page) {  // head 0 has two of the pages, head 1 seven, head 2 none
    const int64_t head = page < 4 ? 0 : 1;
    const KvSegment& whole = sequence.segments[static_cast<size_t>(page)];
    mixed.push_back(whole.of_head(head, head));
    of_head[static_cast<size_t>(head)].push_back(whole);
  }
  mixed.push_back(sequence.segments.back());
  const size_t size = type == KvType::kBf16 ? 2 : 4, row = 6 * 64 * size;
  AttentionScratch scratch;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    std::vector<uint8_t> out(kQueries * row);
    AttentionTask task = sequence.task(kQueries, out.data());
    task.segments = mixed;
    attention(pool, sequence.shape, {&task, 1}, scratch);
    AttentionMassTask mass_task{task.q, task.q_stride, kQueries, mixed, nullptr};
    std::vector<float> mass(static_cast<size_t>(attention_mass_floats(sequence.shape, mass_task)), -1.0f);
    mass_task.mass = mass.data();
    attention_mass(pool, sequence.shape, {&mass_task, 1}, scratch);
    for (int64_t head = 0; head < kHeads; ++head) {
      std::vector<KvSegment>& own = of_head[static_cast<size_t>(head)];
      if (threads == 1) own.push_back(sequence.segments.back());
      std::vector<uint8_t> expected(kQueries * row);
      AttentionTask alone = sequence.task(kQueries, expected.data());
      alone.segments = own;
      attention(pool, sequence.shape, {&alone, 1}, scratch);
      for (size_t i = 0; i < kQueries * 6 * 64; ++i) {
        if (static_cast<int64_t>(i / 64 % 6 / 2) != head) continue;
        EXPECT_NEAR(element(out, type, i), element(expected, type, i), type == KvType::kBf16 ? 8e-3 : 1e-5)
            << head << ", " << i;
      }
    }
    // The mass of a KV head is the larger probability of two heads, so its sum is at least 1. It is 0 at tokens that
    // the head does not see.
    const float* p = mass.data();
    for (int64_t query = 0; query < kQueries; ++query) {
      const int64_t seen = kPages * kPageTokens + 30 - (kQueries - 1 - query);
      for (int64_t head = 0; head < kHeads; ++head, p += seen) {
        double sum = 0;
        for (int64_t t = 0; t < seen; ++t) {
          ASSERT_GE(p[t], 0.0f);
          sum += p[t];
          const bool other = t >= 2 * kPageTokens && t < kPages * kPageTokens && head != (t < 4 * kPageTokens ? 0 : 1);
          if (other) {
            ASSERT_EQ(p[t], 0.0f) << query << ", " << head << ", " << t;
          }
        }
        EXPECT_GT(sum, 0.99);
        EXPECT_LT(sum, 2.01);
      }
    }
  }
}

TEST_P(AttentionLevels, AHeadPassesOverThePagesOfOthers) {
  const KvType type = std::get<1>(GetParam());
  expect_heads_to_pass_over_others(type, {std::nullopt});
  expect_heads_to_pass_over_others(type, {QuantizedLayout{uniform_runs(64, 4), uniform_runs(kPageTokens, 4)}});
}

INSTANTIATE_TEST_SUITE_P(Levels, AttentionLevels, kLevels, name_of_level);

TEST(Attention, RefusesShapesItCannotRun) {
  ThreadPool pool(1);
  AttentionScratch scratch;
  EXPECT_THROW(attention(pool, {9, 3, 72, 1.0f, KvType::kBf16}, {}, scratch), std::invalid_argument);
  EXPECT_THROW(attention(pool, {9, 2, 64, 1.0f, KvType::kBf16}, {}, scratch), std::invalid_argument);
  EXPECT_THROW(attention(pool, {9, 3, 64, 1.0f, KvType::kBf16, -1}, {}, scratch), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels
