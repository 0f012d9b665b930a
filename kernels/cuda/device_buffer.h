// Memory of a CUDA device, and pinned host memory for direct copies. Buffers grow to the requested size and never
// shrink. They throw std::runtime_error if there is no room.
#pragma once

#include <cstddef>

namespace smartkv::kernels::cuda {

// A buffer in device memory.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  // Returns at least `bytes` bytes. If the buffer grows, its contents are lost, and the call waits for the device.
  std::byte* reserve(size_t bytes);
  std::byte* try_reserve(size_t bytes);  // Returns null if there is no room.

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A buffer in pinned host memory.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  // Returns at least `bytes` bytes and keeps the first `keep` bytes. REQUIRES: no copy from or to the buffer is under
  // way.
  std::byte* reserve(size_t bytes, size_t keep = 0);
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace smartkv::kernels::cuda
