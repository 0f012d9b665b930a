// The emulator's promises: it runs kernels as a GPU may run them, and reports errors that a GPU would not.
#include "cuda_emulator.h"

#include <cstdio>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/bf16.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

using cuda_emulator::Order;

template <typename T>
T* shared() {
  return reinterpret_cast<T*>(shared_memory());
}

// Each thread reads what the opposite thread wrote.
void reverse(int* out, bool with_barrier) {
  const auto i = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  shared<int>()[i] = i;
  if (with_barrier) __syncthreads();
  out[static_cast<int>(blockIdx.x) * n + i] = shared<int>()[n - 1 - i];
}

TEST(CudaEmulator, RunsBlocksOfThreadsWithBarriers) {
  std::vector<int> out(3 * 96);
  launch(reverse, "reverse", 3, 96, 96 * sizeof(int), nullptr, out.data(), true);
  for (int i = 0; i < 3 * 96; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 95 - i % 96);
}

TEST(CudaEmulator, AMissingBarrierShowsInOneOfTheOrders) {
  std::vector<int> forward(64), backward(64);
  launch(reverse, "reverse", 1, 64, 64 * sizeof(int), nullptr, forward.data(), false);
  cuda_emulator::set_order(Order::kBackward);
  launch(reverse, "reverse", 1, 64, 64 * sizeof(int), nullptr, backward.data(), false);
  cuda_emulator::set_order(Order::kForward);
  EXPECT_EQ(forward[0], -1);  // contents of shared memory that no thread has written
  EXPECT_NE(forward, backward);
}

void count_up(int* memory) { memory[threadIdx.x] += static_cast<int>(threadIdx.x); }

TEST(CudaEmulatorDeathTest, TheHostDoesNotReachMemoryOfTheDevice) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64 * sizeof(int)), cudaSuccess);
  auto* const ints = static_cast<int*>(memory);
  std::vector<int> host(64, 5);
  EXPECT_EQ(cudaMemcpyAsync(ints, host.data(), 64 * sizeof(int), cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  launch(count_up, "count_up", 1, 64, 0, nullptr, ints);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), ints, 64 * sizeof(int), cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(host[63], 68);
  EXPECT_DEATH(std::printf("%d", *static_cast<volatile int*>(ints)), "");
  EXPECT_DEATH(*static_cast<volatile int*>(ints) = 1, "");
  EXPECT_DEATH(launch(count_up, "count_up", 1, 96, 0, nullptr, ints), "");  // past the end of the memory
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

void some_leave(int* out) {
  if (threadIdx.x < 5) return;
  __syncthreads();
  *out = 1;
}
void different_places(int* out) {
  const float x = threadIdx.x % 32 < 5 ? __shfl_xor_sync(kAllLanes, 1.0f, 1)
                                       : __shfl_xor_sync(kAllLanes, 2.0f, 1);  // another source line
  *out = static_cast<int>(x);
}
void block_and_warp(int*) {
  if (threadIdx.x == 0) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

TEST(CudaEmulator, RefusesDivergentBarriers) {
  int out = 0;
  for (const auto kernel : {some_leave, different_places, block_and_warp}) {
    EXPECT_THROW(launch(kernel, "divergent", 1, 64, 0, nullptr, &out), std::logic_error);
  }
  EXPECT_EQ(out, 0);
  std::vector<int> after(64);
  launch(reverse, "reverse", 1, 64, 64 * sizeof(int), nullptr, after.data(), true);
  EXPECT_EQ(after[0], 63) << "an error left something behind";
}

void copies(const uint32_t* from, uint32_t* early, uint32_t* late) {
  auto* const to = shared<uint32_t>() + 4 * threadIdx.x;
  copy_async_16(to, from + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_commit();  // an empty group
  copy_async_wait<2>();
  early[threadIdx.x] = to[0];
  copy_async_wait<1>();
  late[threadIdx.x] = to[3];
}
void forgets_to_wait(const uint32_t* from) {
  copy_async_16(shared<uint32_t>(), from);
  copy_async_commit();
}
void misses_the_alignment(const uint32_t* from) { copy_async_16(shared<uint32_t>(), from + 1); }
void leaves_shared_memory(const uint32_t* from) { copy_async_16(shared<uint32_t>() + 4, from); }

TEST(CudaEmulator, CopiesHappenWhenTheyAreWaitedFor) {
  alignas(16) uint32_t from[128];
  for (uint32_t i = 0; i < 128; ++i) from[i] = i;
  std::vector<uint32_t> early(32), late(32);
  launch(copies, "copies", 1, 32, sizeof from, nullptr, from, early.data(), late.data());
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(early[i], 0xffffffffu);
    EXPECT_EQ(late[i], 4 * i + 3);
  }
  for (const auto kernel : {forgets_to_wait, misses_the_alignment, leaves_shared_memory}) {
    EXPECT_THROW(launch(kernel, "copy", 1, 32, 16, nullptr, from), std::logic_error);
  }
}

// Computes c = 1 + a b with one warp, passing `a` through shared memory.
void product(const uint16_t* a, const uint16_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, j = lane % 4;
  for (int i = lane; i < 256; i += 32) shared<uint16_t>()[i / 16 * 24 + i % 16] = a[i];
  __syncwarp();
  uint32_t fragment[4];
  load_a(fragment, shared<uint16_t>(), 48);
  const auto pair = [&](int k) { return b[8 * k + g] | static_cast<uint32_t>(b[8 * (k + 1) + g]) << 16; };
  float sums[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_bf16(sums, fragment, pair(2 * j), pair(2 * j + 8));
  for (int i = 0; i < 4; ++i) c[8 * (g + i / 2 * 8) + 2 * j + i % 2] = sums[i];
}

TEST(CudaEmulator, AMatrixProductIsOne) {
  std::vector<uint16_t> a(16 * 16), b(16 * 8);
  for (size_t i = 0; i < a.size(); ++i) a[i] = to_bf16(static_cast<float>(i * 7 % 31) - 15.0f);
  for (size_t i = 0; i < b.size(); ++i) b[i] = to_bf16(static_cast<float>(i * 5 % 17) - 8.0f);
  std::vector<float> c(16 * 8);
  launch(product, "product", 1, 32, 16 * 48, nullptr, a.data(), b.data(), c.data());
  for (size_t m = 0; m < 16; ++m) {
    for (size_t n = 0; n < 8; ++n) {
      float sum = 1.0f;
      for (size_t k = 0; k < 16; ++k) sum += from_bf16(a[16 * m + k]) * from_bf16(b[8 * k + n]);
      EXPECT_EQ(c[8 * m + n], sum) << m << ", " << n;
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels::cuda
