// CUDA on the CPU, for tests. Provides the parts of the language and of the runtime that kernels/cuda uses, so that g++
// compiles the same sources.
//
// A kernel runs block by block, and each thread of a block is a fiber. A fiber runs until it waits: at a barrier of the
// block, or for the other lanes of its warp. Behaviour that hardware leaves undefined is an error here or shows in the
// result:
//  - Shared memory holds NaN (bytes 0xff) when a block starts. An access past its end is reported by AddressSanitizer
//    or as an error.
//  - An asynchronous copy takes place when it is waited for, not before. An earlier read sees the old contents.
//  - std::logic_error is thrown if threads wait for each other at different places, or for a thread that has returned.
//  - A copy on a stream that does not wait for the default stream takes place when an event behind it is waited for.
//  - `Order` decides which thread runs first between two barriers. Results must not depend on it.
//  - Memory of the device is accessible only while a kernel runs or the runtime copies. Any other access, or one past
//    the end of the memory, ends the process with SIGSEGV.
//
// REQUIRES: one host thread at a time calls; the runtime's functions are exempt.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <source_location>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace smartkv::cuda_emulator {

// The order in which threads continue if several can: threads of a block, lanes of a warp.
enum class Order : uint8_t { kForward, kBackward };
void set_order(Order order);

struct Thread {
  dim3 index;
};
extern Thread* running;  // the current thread
extern dim3 block_index, block_size, grid_size;
extern std::byte* shared_memory;  // of the current block

void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

// Blocks until all threads of the block have arrived.
void block_barrier();

// Blocks until all 32 lanes of the warp have arrived with the same operation. The last lane runs it over the `mine` of
// all.
using WarpOperation = void (*)(void* const* lanes);
void warp_collective(WarpOperation operation, void* mine, const std::source_location& at);

// cp.async of 16 bytes into shared memory. Groups work as with cp.async.commit_group and cp.async.wait_group.
void copy_async_16(void* to, const void* from);
void copy_async_commit();
void copy_async_wait(int groups_in_flight);

// Computes c += a b by mma.sync m16n8k16, row.col, of bf16 or f16 with f32 sums. Fragments are as in the PTX manual.
void mma_m16n8k16_bf16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1);
void mma_m16n8k16_f16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1);
// ldmatrix .x4 .b16. Lane i passes the address of row i % 8 of matrix i / 8.
void load_matrix_x4(uint32_t* out, const void* row);

}  // namespace smartkv::cuda_emulator

#define threadIdx (smartkv::cuda_emulator::running->index)
#define blockIdx (smartkv::cuda_emulator::block_index)
#define blockDim (smartkv::cuda_emulator::block_size)
#define gridDim (smartkv::cuda_emulator::grid_size)

inline void __syncthreads() { smartkv::cuda_emulator::block_barrier(); }
inline void __syncwarp(const std::source_location& at = std::source_location::current()) {
  smartkv::cuda_emulator::warp_collective([](void* const*) {}, nullptr, at);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int lane_mask, const std::source_location& at = std::source_location::current()) {
  struct Lane {
    T in, out;
    int mask;
  } lane{value, value, lane_mask};
  const auto operation = [](void* const* lanes) {
    for (int i = 0; i < 32; ++i) {
      auto* const me = static_cast<Lane*>(lanes[i]);
      me->out = static_cast<Lane*>(lanes[i ^ me->mask])->in;
    }
  };
  smartkv::cuda_emulator::warp_collective(operation, &lane, at);
  return lane.out;
}

// Lanes below `step` keep their value.
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned step, const std::source_location& at = std::source_location::current()) {
  struct Lane {
    T in, out;
    unsigned step;
  } lane{value, value, step};
  const auto operation = [](void* const* lanes) {
    for (unsigned i = 0; i < 32; ++i) {
      auto* const me = static_cast<Lane*>(lanes[i]);
      if (i >= me->step) me->out = static_cast<Lane*>(lanes[i - me->step])->in;
    }
  };
  smartkv::cuda_emulator::warp_collective(operation, &lane, at);
  return lane.out;
}

inline int __any_sync(unsigned, int predicate, const std::source_location& at = std::source_location::current()) {
  const auto operation = [](void* const* lanes) {
    int any = 0;
    for (int i = 0; i < 32; ++i) any |= *static_cast<int*>(lanes[i]);
    for (int i = 0; i < 32; ++i) *static_cast<int*>(lanes[i]) = any;
  };
  predicate = predicate != 0;
  smartkv::cuda_emulator::warp_collective(operation, &predicate, at);
  return predicate;
}

// Bit i of the result is the predicate of lane i.
inline unsigned __ballot_sync(unsigned, int predicate,
                              const std::source_location& at = std::source_location::current()) {
  unsigned ballot = predicate != 0 ? 1 : 0;
  const auto operation = [](void* const* lanes) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= *static_cast<unsigned*>(lanes[i]) << i;
    for (int i = 0; i < 32; ++i) *static_cast<unsigned*>(lanes[i]) = all;
  };
  smartkv::cuda_emulator::warp_collective(operation, &ballot, at);
  return ballot;
}

inline int atomicMax(int* address, int value) {
  const int old = *address;
  *address = std::max(old, value);
  return old;
}
inline int atomicMin(int* address, int value) {
  const int old = *address;
  *address = std::min(old, value);
  return old;
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  const unsigned long long old = *address;
  *address += value;
  return old;
}
inline int atomicAdd(int* address, int value) {
  const int old = *address;
  *address += value;
  return old;
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
// Byte i of the result is byte (selector >> 4 i & 7) of the eight bytes of x, then y.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}

struct CUstream_st;

// The runtime. Calls on the default stream, and on streams that wait for it, run at once.
namespace smartkv::cuda_emulator {
// Allocates memory of the device, filled with 0xff. Returns null if there is none.
void* allocate(size_t bytes);
void free(void* memory);
void copy(void* to, const void* from, size_t bytes);
void fill(void* to, int byte, size_t bytes);
// Creates a stream that does not wait for the default stream.
CUstream_st* new_stream();
void delete_stream(CUstream_st* stream);
void synchronize();  // runs all pending work of all streams
}  // namespace smartkv::cuda_emulator

struct CUstream_st {
  std::vector<std::function<void()>> waiting;  // pending work, in order
  void run();
};
struct CUevent_st {
  CUstream_st* stream = nullptr;  // on which it was recorded
};
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "out of memory"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMalloc(void** out, size_t bytes) {
  *out = smartkv::cuda_emulator::allocate(bytes);
  return *out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  smartkv::cuda_emulator::synchronize();
  smartkv::cuda_emulator::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** out, size_t bytes) {
  *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const auto copy = [=] { smartkv::cuda_emulator::copy(to, from, bytes); };
  if (stream == nullptr) {
    copy();
  } else {
    stream->waiting.emplace_back(copy);
  }
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  smartkv::cuda_emulator::fill(to, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = smartkv::cuda_emulator::new_stream();
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream != nullptr) smartkv::cuda_emulator::delete_stream(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != nullptr) stream->run();
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  return cudaStreamSynchronize(event->stream);
}
