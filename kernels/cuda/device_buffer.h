// Memory of a CUDA device, and memory of the host that it copies from and to without a detour. Both grow to what is asked for
// and stay; std::runtime_error where there is no room.
#pragma once

#include <cstddef>

namespace smartkv::kernels::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  // At least `bytes`; what it held is lost if it grows, which waits for the device.
  std::byte* reserve(size_t bytes);
  std::byte* try_reserve(size_t bytes);  // null where there is no room

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Pinned.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  // At least `bytes`, of which the first `keep` are as before. No copy from or to it is under way.
  std::byte* reserve(size_t bytes, size_t keep = 0);
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace smartkv::kernels::cuda
