// Common parts of the tests of kernels/cuda. They run on the emulator, or natively on a GPU (scripts/test_cuda.sh),
// where all their allocations are managed memory.
#pragma once

#ifdef SMARTKV_NATIVE_CUDA
#include <cuda_runtime_api.h>

#include <stdexcept>
#else
#include "cuda_emulator.h"
#endif

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu_level.h"

namespace smartkv {

#ifdef SMARTKV_NATIVE_CUDA
enum class Order : uint8_t { kForward, kBackward };
inline void set_order(Order) {}  // a GPU has its own order
#else
using cuda_emulator::Order;
using cuda_emulator::set_order;
#endif

// For results that must not depend on which of a block's threads runs first. Used as INSTANTIATE_TEST_SUITE_P(Orders,
// NAME, kOrders, name_of_order).
class OrderTest : public testing::TestWithParam<Order> {
 protected:
  void SetUp() override { set_order(GetParam()); }
  void TearDown() override { set_order(Order::kForward); }
};
inline const auto kOrders = testing::Values(Order::kForward, Order::kBackward);
inline std::string name_of_order(const testing::TestParamInfo<Order>& row) {
  return row.param == Order::kForward ? "forward" : "backward";
}

// Skips a test that compares sums of products with the CPU's bit for bit if this CPU cannot compute them. Used in the
// test or its SetUp().
#define SMARTKV_NEEDS_FUSED_PRODUCTS()                          \
  if (kernels::detected_cpu_level() < kernels::CpuLevel::kAvx2) \
  GTEST_SKIP() << "this CPU does not round sums of products once"

inline std::vector<float> random_values(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.3f, 1.5f);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(generator);
  return x;
}

// Waits for everything that was launched.
inline void finish() {
#ifdef SMARTKV_NATIVE_CUDA
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
#endif
}

}  // namespace smartkv
