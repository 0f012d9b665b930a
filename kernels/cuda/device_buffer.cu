#include "kernels/cuda/device_buffer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

std::byte* DeviceBuffer::try_reserve(size_t bytes) {
  if (bytes <= bytes_) return data_;
  const size_t wanted = std::max(bytes, bytes_ + bytes_ / 2);
  check(cudaFree(data_), "cudaFree");
  data_ = nullptr;
  bytes_ = 0;
  void* memory = nullptr;
  if (cudaMalloc(&memory, wanted) != cudaSuccess) {
    cudaGetLastError();  // The error is handled here.
    return nullptr;
  }
  data_ = static_cast<std::byte*>(memory);
  bytes_ = wanted;
  return data_;
}

std::byte* DeviceBuffer::reserve(size_t bytes) {
  std::byte* const data = try_reserve(bytes);
  if (data == nullptr && bytes > 0) {
    throw std::runtime_error("CUDA: the device has no memory for another " + std::to_string(bytes) + " bytes");
  }
  return data;
}

HostBuffer::~HostBuffer() { cudaFreeHost(data_); }

std::byte* HostBuffer::reserve(size_t bytes, size_t keep) {
  if (bytes <= bytes_) return data_;
  const size_t wanted = std::max({bytes, 2 * bytes_, size_t{4096}});
  void* memory = nullptr;
  check(cudaMallocHost(&memory, wanted), "cudaMallocHost");
  if (keep > 0) std::memcpy(memory, data_, keep);
  cudaFreeHost(data_);
  data_ = static_cast<std::byte*>(memory);
  bytes_ = wanted;
  return data_;
}

}  // namespace smartkv::kernels::cuda
