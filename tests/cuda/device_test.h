// What the tests of kernels/cuda need of what runs them: the emulator, or natively a GPU (scripts/test_cuda.sh), where all that
// they allocate is managed memory.
#pragma once

#ifdef SMARTKV_NATIVE_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#else
#include "cuda_emulator.h"
#endif

namespace smartkv {

#ifdef SMARTKV_NATIVE_CUDA
enum class Order : uint8_t { kForward, kBackward };
inline void set_order(Order) {}  // a GPU's is its own
#else
using cuda_emulator::Order;
using cuda_emulator::set_order;
#endif

// Waits for all that was launched.
inline void finish() {
#ifdef SMARTKV_NATIVE_CUDA
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
#endif
}

}  // namespace smartkv
