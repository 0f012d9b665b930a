// Data that the host sends to a CUDA device, from pinned memory, so that copies wait for nothing.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Gathers data of the host in one region and copies it to the device in one piece.
class Staging {
 public:
  // Empties the staging. REQUIRES: the last upload has arrived.
  void clear() { bytes_ = 0; }
  // Appends `bytes` bytes from `from`, or only reserves room for them if `from` is null. Returns their offset, a
  // multiple of 256.
  size_t add(const void* from, size_t bytes);
  // Appends n rows of `width` floats, which lie `stride` floats apart, without gaps. Returns their offset.
  size_t add_rows(const float* from, int64_t n, int64_t width, int64_t stride);
  size_t bytes() const { return bytes_; }
  std::byte* at(size_t offset) { return host_.data() + offset; }  // Valid until the next add().
  // Copies everything to the device, after the work on `stream`. Returns the device address of offset 0.
  std::byte* upload(CUstream_st* stream);

 private:
  HostBuffer host_;
  DeviceBuffer device_;
  size_t bytes_ = 0;
};

// Tables for launches on one stream. A table stays until the ring is full and begins again, which waits for the stream.
class UploadRing {
 public:
  // Returns room in host memory for the next send().
  std::byte* room(size_t bytes, CUstream_st* stream);
  // Copies the contents of the last room() to the device. Returns their device address, a multiple of 256.
  const std::byte* send(CUstream_st* stream);

  // Copies `rows` to the device.
  template <typename T>
  const T* send(std::span<const T> rows, CUstream_st* stream) {
    copy(rows.data(), rows.size_bytes(), stream);
    return reinterpret_cast<const T*>(send(stream));
  }

 private:
  void copy(const void* from, size_t bytes, CUstream_st* stream);

  HostBuffer host_;
  DeviceBuffer device_;
  std::byte* on_device_ = nullptr;
  size_t bytes_ = 0, next_ = 0, sent_ = 0;  // Size of the ring, offset of the last room(), its size.
};

}  // namespace smartkv::kernels::cuda
