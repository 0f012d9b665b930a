#include "kernels/cuda/uploads.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;  // For data that kernels read in words of 16 bytes.
constexpr size_t kLeastRing = size_t{1} << 16;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

size_t Staging::add(const void* from, size_t bytes) {
  const size_t at = aligned(bytes_);
  host_.reserve(at + bytes, bytes_);
  bytes_ = at + bytes;
  if (from != nullptr && bytes > 0) std::memcpy(host_.data() + at, from, bytes);
  return at;
}

size_t Staging::add_rows(const float* from, int64_t n, int64_t width, int64_t stride) {
  const size_t at = add(nullptr, static_cast<size_t>(n * width) * sizeof(float)),
               row = static_cast<size_t>(width) * sizeof(float);
  for (int64_t i = 0; i < n; ++i) std::memcpy(host_.data() + at + static_cast<size_t>(i) * row, from + i * stride, row);
  return at;
}

std::byte* Staging::upload(cudaStream_t stream) {
  std::byte* const device = device_.reserve(std::max<size_t>(1, bytes_));
  if (bytes_ > 0)
    check(cudaMemcpyAsync(device, host_.data(), bytes_, cudaMemcpyHostToDevice, stream), "copying to the device");
  return device;
}

std::byte* UploadRing::room(size_t bytes, cudaStream_t stream) {
  next_ = aligned(next_ + sent_);
  if (next_ + bytes > bytes_) {  // The device may still copy what was sent.
    check(cudaStreamSynchronize(stream), "waiting for tables");
    if (bytes > bytes_) {
      bytes_ = std::max({kLeastRing, 2 * bytes_, aligned(bytes)});
      host_.reserve(bytes_);
      on_device_ = device_.reserve(bytes_);
    }
    next_ = 0;
  }
  sent_ = bytes;
  return host_.data() + next_;
}

const std::byte* UploadRing::send(cudaStream_t stream) {
  if (sent_ > 0) {
    check(cudaMemcpyAsync(on_device_ + next_, host_.data() + next_, sent_, cudaMemcpyHostToDevice, stream),
          "copying tables");
  }
  return on_device_ + next_;
}

void UploadRing::copy(const void* from, size_t bytes, cudaStream_t stream) {
  std::byte* const to = room(bytes, stream);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace smartkv::kernels::cuda
