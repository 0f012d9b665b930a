// Bytes aligned to 64, zeroed, owned.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace smartkv {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) : size_(size) {
    if (size == 0) return;
    const size_t rounded = (size + 63) / 64 * 64;
    data_ = static_cast<std::byte*>(std::aligned_alloc(rounded >= kHuge ? kHuge : 64, round_up(rounded)));
    if (data_ == nullptr) throw std::bad_alloc();
    advise_huge();
    std::memset(data_, 0, rounded);
  }
  ~AlignedBuffer() { std::free(data_); }
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
  static constexpr size_t kHuge = 2 << 20;
  static size_t round_up(size_t size) { return size >= kHuge ? (size + kHuge - 1) / kHuge * kHuge : size; }
  void advise_huge();  // large buffers ask for huge pages

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace smartkv
