#include "kernels/cuda/device_buffer.h"

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

std::byte* DeviceBuffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return data_;
  check(cudaFree(data_), "cudaFree");
  data_ = nullptr;
  bytes_ = 0;
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return data_;
}

}  // namespace smartkv::kernels::cuda
