// Everything that the kernels use of CUDA beyond its plain language. nvcc compiles it to instructions. g++ compiles it
// against the emulator of tests/cuda, which gives each instruction a body. So the same sources run on a CPU under
// sanitizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <cuda_emulator.h>

#include "kernels/bf16.h"
#include "kernels/half.h"
#endif

namespace smartkv::kernels::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// Throws std::runtime_error with CUDA's message if `error` is one.
inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// Launches blocks of kernel(arguments...) on a stream, with `shared_bytes` bytes of dynamic shared memory.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const char* name, int64_t blocks, int threads, size_t shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
  if (blocks == 0) return;
#ifdef __CUDACC__
  // More than 48 KB must be requested. To request it again costs a microsecond.
  if (shared_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          name);
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes, stream>>>(arguments...);
  check(cudaGetLastError(), name);
#else
  (void)name, (void)stream;
  cuda_emulator::launch({static_cast<unsigned>(blocks)}, {static_cast<unsigned>(threads)}, shared_bytes,
                        [&] { kernel(arguments...); });
#endif
}

// Returns the block's dynamic shared memory.
__device__ __forceinline__ unsigned char* shared_memory() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
#else
  return reinterpret_cast<unsigned char*>(cuda_emulator::shared_memory);
#endif
}

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
#endif

// Starts a copy of 16 bytes from global to shared memory, which bypasses the registers and the first-level cache.
__device__ __forceinline__ void copy_async_16(void* to, const void* from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  cuda_emulator::copy_async_16(to, from);
#endif
}

// Makes a group of the copies that this thread started since the last group.
__device__ __forceinline__ void copy_async_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  cuda_emulator::copy_async_commit();
#endif
}

// Waits until at most kGroups of this thread's latest groups are in flight.
template <int kGroups>
__device__ __forceinline__ void copy_async_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  cuda_emulator::copy_async_wait(kGroups);
#endif
}

// Computes c [16][8] += a [16][16] b [16][8] in bf16 with f32 sums, by a warp. Lane i = 4 g + j has
//   a: rows g, g + 8 of columns 2 j, 2 j + 1, then the same of columns + 8
//   b: rows 2 j, 2 j + 1 of column g, then rows + 8
//   c: columns 2 j, 2 j + 1 of row g, then of row g + 8
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_emulator::mma_m16n8k16_bf16(c, a, b0, b1);
#endif
}

// Does the same for f16.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  cuda_emulator::mma_m16n8k16_f16(c, a, b0, b1);
#endif
}

// Loads fragment `a` of either product from a [16][16] part of a matrix of 16-bit elements in shared memory. Rows are
// row_bytes apart, at multiples of 16.
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const void* matrix, int row_bytes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const void* const row = static_cast<const unsigned char*>(matrix) + lane % 16 * row_bytes + lane / 16 * 16;
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(row))
               : "memory");
#else
  cuda_emulator::load_matrix_x4(a, row);
#endif
}

// Returns `low` and `high` as bf16, rounded to nearest even, in the lower and the upper half of a word.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#ifdef __CUDACC__
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16;
#endif
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float half_to_float(uint16_t half) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  return kernels::half_to_float(half);
#endif
}
// Rounds to nearest even. REQUIRES: the magnitude is at most 65504.
__device__ __forceinline__ uint16_t float_to_half(float value) {
#ifdef __CUDACC__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  return kernels::float_to_half(value);
#endif
}

// Does the same as pack_bf16() for f16.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}
__device__ __forceinline__ float low_half(uint32_t pair) { return half_to_float(static_cast<uint16_t>(pair)); }
__device__ __forceinline__ float high_half(uint32_t pair) { return half_to_float(static_cast<uint16_t>(pair >> 16)); }

// Returns 2^x, or 0 if x is below -126.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC__
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
#else
  return x < -126.0f ? 0.0f : std::exp2(x);
#endif
}

// Reduce over the four lanes 4 g, ..., 4 g + 3, which share rows of a fragment.
__device__ __forceinline__ float max_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ float max_of_warp(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, mask));
  return x;
}
template <typename T>
__device__ __forceinline__ T sum_of_warp(T x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

}  // namespace smartkv::kernels::cuda
