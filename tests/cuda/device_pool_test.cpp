// The pool of device memory.
#include "kernels/cuda/device_pool.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv::kernels::cuda {
namespace {

constexpr size_t kUnit = DevicePool::kAlignment;

TEST(DevicePool, WhatIsFreedIsGivenAgainAndJoinsItsNeighbours) {
  DevicePool pool;
  std::byte* const a = pool.allocate(1000);
  std::byte* const b = pool.allocate(1);
  std::byte* const c = pool.allocate(4 * kUnit);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % kUnit, 0u);
  EXPECT_EQ(pool.bytes_in_use(), 9 * kUnit);
  const size_t held = pool.bytes_held();
  pool.free(b);
  EXPECT_EQ(pool.allocate(kUnit), b);  // the smallest free block that is large enough
  pool.free(a);
  pool.free(c);
  pool.free(b);  // between two free blocks
  EXPECT_EQ(pool.allocate(9 * kUnit), a);
  EXPECT_EQ(pool.bytes_in_use(), 9 * kUnit);
  EXPECT_EQ(pool.bytes_held(), held);
}

TEST(DevicePool, MemoryOfTheHostIsApart) {
  DevicePool pool;
  std::byte* const device = pool.allocate(kUnit);
  std::byte* const host = pool.allocate(3 * kUnit, Place::kHost);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % kUnit, 0u);
  host[0] = host[3 * kUnit - 1] = std::byte{1};  // device memory would not be accessible
  EXPECT_EQ(pool.page_at(device).place, Place::kDevice);
  EXPECT_EQ(pool.page_at(host + kUnit).place, Place::kHost);
  EXPECT_EQ(pool.bytes_in_use(), kUnit);
  EXPECT_EQ(pool.bytes_in_use(Place::kHost), 3 * kUnit);
  pool.free(host);
  EXPECT_EQ(pool.bytes_in_use(Place::kHost), 0u);
  EXPECT_GT(pool.bytes_held(Place::kHost), 0u);
  EXPECT_NE(pool.allocate(2 * kUnit), host);
  EXPECT_EQ(pool.allocate(2 * kUnit, Place::kHost), host);
}

TEST(DevicePool, BlocksOfAllSizesDoNotOverlapAndNothingMoreIsHeldInSteadyState) {
  DevicePool pool;
  std::mt19937 random(1);
  struct Block {
    std::byte* at;
    size_t bytes;
  };
  std::vector<Block> blocks;
  size_t held = 0;
  for (int step = 0; step < 20000; ++step) {
    if (blocks.size() < 200 || (blocks.size() < 260 && random() % 2 == 0)) {
      const size_t bytes = 1 + random() % 50000;
      blocks.push_back({pool.allocate(bytes), bytes});
      ASSERT_NE(blocks.back().at, nullptr);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      pool.free(blocks.back().at);
      blocks.pop_back();
    }
    if (step == 10000) held = pool.bytes_held();
  }
  EXPECT_EQ(pool.bytes_held(), held);
  EXPECT_LT(held, 2 * pool.bytes_in_use() + (size_t{4} << 20));
  std::sort(blocks.begin(), blocks.end(), [](const Block& x, const Block& y) { return x.at < y.at; });
  for (size_t i = 1; i < blocks.size(); ++i) EXPECT_LE(blocks[i - 1].at + blocks[i - 1].bytes, blocks[i].at);
  for (const Block& block : blocks) {
    const DevicePool::Page page = pool.page_at(block.at + block.bytes - 1);
    EXPECT_EQ(page.begin, block.at);
    EXPECT_TRUE(page.holds(block.at + block.bytes - 1));
    EXPECT_EQ(page.access, pool.page_at(block.at).access);
    pool.free(block.at);
  }
  EXPECT_EQ(pool.bytes_in_use(), 0u);
  EXPECT_EQ(pool.bytes_held(), held);
}

TEST(DevicePool, KnowsWhatIsNoneOfItsBlocks) {
  DevicePool pool;
  std::byte* const a = pool.allocate(kUnit);
  int elsewhere = 0;
  EXPECT_THROW(pool.page_at(&elsewhere), std::invalid_argument);
  EXPECT_THROW(pool.page_at(a + kUnit), std::invalid_argument);
  EXPECT_THROW(pool.page_at(nullptr), std::invalid_argument);
  pool.free(a);
  EXPECT_THROW(pool.page_at(a), std::invalid_argument);
}

}  // namespace
}  // namespace smartkv::kernels::cuda
