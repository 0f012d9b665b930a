// Zeroed memory aligned to 64 bytes, and a buffer that owns such memory.
#pragma once

#include <cstddef>
#include <utility>

namespace smartkv {

// Returns `size` bytes of zeroed memory, aligned to 64 bytes. Returns null if `size` is 0. From 2 MiB on the memory
// asks for huge pages. Throws std::bad_alloc.
std::byte* allocate_aligned(size_t size);
// Frees memory of allocate_aligned(). REQUIRES: `size` is the size that was allocated.
void free_aligned(std::byte* data, size_t size) noexcept;

// Owns memory of allocate_aligned().
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) : data_(allocate_aligned(size)), size_(size) {}  // throws std::bad_alloc
  ~AlignedBuffer() { free_aligned(data_, size_); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // Makes the buffer at least `size` bytes large. The contents are lost if it grows. Throws std::bad_alloc.
  void grow(size_t size) {
    if (size > size_) *this = AlignedBuffer(size);
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace smartkv
