// Memory of a CUDA device.
#pragma once

#include <cstddef>

namespace smartkv::kernels::cuda {

// Grows when more is asked for.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  // At least `bytes`; what it held is lost if it grows, which waits for the device. std::runtime_error if there is no room.
  std::byte* reserve(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace smartkv::kernels::cuda
