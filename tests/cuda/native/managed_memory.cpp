// Makes every allocation of the tests managed memory, which both the host and a GPU can read and write.
#include <cuda_runtime_api.h>

#include <cstring>
#include <new>

#include "kernels/aligned_buffer.h"

namespace {

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (cudaMallocManaged(&memory, bytes == 0 ? 1 : bytes) != cudaSuccess) throw std::bad_alloc();
  return memory;  // aligned to 256 bytes
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t) { return allocate(bytes); }
void operator delete(void* memory) noexcept { cudaFree(memory); }
void operator delete(void* memory, std::size_t) noexcept { cudaFree(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { cudaFree(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { cudaFree(memory); }

namespace smartkv {

std::byte* allocate_aligned(size_t size) {
  auto* const memory = static_cast<std::byte*>(allocate(size));
  std::memset(memory, 0, size);
  return memory;
}
void free_aligned(std::byte* data, size_t /*size*/) noexcept { cudaFree(data); }

}  // namespace smartkv
