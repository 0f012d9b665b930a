#include "kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

namespace smartkv {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      pool.parallel_for(n, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1) << threads << " threads, " << n << " tasks";
    }
  }
}

TEST(ThreadPoolTest, ResultsOfAllTasksAreVisibleToTheCaller) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64);  // plain, so that ThreadSanitizer checks the ordering
  for (int64_t round = 1; round <= 5000; ++round) {
    const auto n = static_cast<int64_t>(1 + round % values.size());
    pool.parallel_for(n, [&](int64_t i) { values[static_cast<size_t>(i)] += round; });
  }
  std::vector<int64_t> expected(values.size());
  for (int64_t round = 1; round <= 5000; ++round) {
    for (size_t i = 0; i < 1 + static_cast<size_t>(round) % values.size(); ++i) expected[i] += round;
  }
  EXPECT_EQ(values, expected);
}

TEST(ThreadPoolTest, WorkersTakePartAfterASleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than workers spin
    // Two tasks that wait for each other need two threads.
    std::atomic<int> arrived{0};
    pool.parallel_for(2, [&](int64_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPoolTest, AnExceptionReachesTheCaller) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      const auto fails = [](int64_t i) {
        if (i % 3 == 1) throw std::runtime_error("task");
      };
      EXPECT_THROW(pool.parallel_for(16, fails), std::runtime_error);
      std::atomic<int> done{0};
      pool.parallel_for(16, [&](int64_t) { done.fetch_add(1); });  // the pool still works
      EXPECT_EQ(done.load(), 16);
    }
  }
}

TEST(ThreadPoolTest, IdlePoolUsesNoCpu) {
  ThreadPool pool(4);
  pool.parallel_for(8, [](int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used, 0.1) << "spinning workers would have used 0.9 s";
}

TEST(ThreadPoolTest, RefusesAnImpossibleSize) {
  EXPECT_THROW(ThreadPool(0), std::invalid_argument);
  EXPECT_THROW(ThreadPool(65), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv
