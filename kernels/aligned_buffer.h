// Bytes aligned to 64, zeroed, owned.
#pragma once

#include <cstddef>
#include <utility>

namespace smartkv {

// Zeroed memory at a multiple of 64 bytes; of 0 bytes null. From 2 MiB on it asks for huge pages. Throws std::bad_alloc.
std::byte* allocate_aligned(size_t size);
// size: as it was allocated with.
void free_aligned(std::byte* data, size_t size) noexcept;

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

  // At least `size` bytes; contents are lost when it grows.
  void grow(size_t size) {
    if (size > size_) *this = AlignedBuffer(size);
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() { return reinterpret_cast<T*>(data_); }
  template <typename T>
  const T* as() const { return reinterpret_cast<const T*>(data_); }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace smartkv
