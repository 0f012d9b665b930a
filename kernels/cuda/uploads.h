// What the host sends to a CUDA device, from pinned memory, so that copies wait for nothing.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Gathers things of the host in one stretch and copies them together.
class Staging {
 public:
  // What was uploaded has arrived.
  void clear() { bytes_ = 0; }
  // A copy of `bytes` bytes at `from`; null: room only. Where it is: an offset, a multiple of 256.
  size_t add(const void* from, size_t bytes);
  // Rows of `width` floats, `stride` floats apart, one after the other.
  size_t add_rows(const float* from, int64_t n, int64_t width, int64_t stride);
  size_t bytes() const { return bytes_; }
  std::byte* at(size_t offset) { return host_.data() + offset; }  // until the next add()
  // Where offset 0 is on the device, after what is on `stream`.
  std::byte* upload(CUstream_st* stream);

 private:
  HostBuffer host_;
  DeviceBuffer device_;
  size_t bytes_ = 0;
};

// Tables for launches of one stream. What was sent stays until as much again has been sent.
class UploadRing {
 public:
  // Room in the host's memory for the next send().
  std::byte* room(size_t bytes, CUstream_st* stream);
  // The last room()'s contents, on the device, at a multiple of 256.
  const std::byte* send(CUstream_st* stream);

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
  size_t bytes_ = 0, next_ = 0, sent_ = 0;  // of the ring; where room() was given, and how much
};

}  // namespace smartkv::kernels::cuda
