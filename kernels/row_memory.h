// Memory for what a pass computes between its products: host memory, or memory of the device that holds products and
// caches.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/aligned_buffer.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels {

// A buffer that grows. It is in host memory until move_to().
class RowMemory {
 public:
  // Moves the buffer with its contents to the memory of `device`. Throws std::bad_alloc.
  void move_to(std::shared_ptr<KvBackend> device) {
    device_ = std::move(device);
    const AlignedBuffer held = std::exchange(host_, {});
    if (held.size() > 0) set(held.data(), held.size());
  }
  // Makes the buffer at least `bytes` bytes large. The contents are lost if it grows. Throws std::bad_alloc.
  void grow(size_t bytes) {
    if (device_ == nullptr) {
      host_.grow(bytes);
    } else if (memory_ == nullptr || bytes > memory_->size()) {
      memory_.reset();
      memory_ = std::make_unique<PageMemory>(device_, bytes);
      device_->finish();  // The device must not zero the memory after others write there.
    }
  }
  // Copies `bytes` bytes of host memory to the beginning of the buffer, which grows if needed.
  void set(const void* from, size_t bytes) {
    grow(bytes);
    if (device_ != nullptr) {
      device_->upload(from, bytes, data());
    } else if (bytes > 0) {
      std::memcpy(data(), from, bytes);
    }
  }

  std::byte* data() { return device_ == nullptr ? host_.data() : memory_->data(); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(device_ == nullptr ? host_.data() : std::as_const(*memory_).data());
  }
  bool empty() const { return device_ == nullptr ? host_.size() == 0 : memory_ == nullptr; }

 private:
  std::shared_ptr<KvBackend> device_;  // Null while the buffer is in host memory.
  AlignedBuffer host_;
  std::unique_ptr<PageMemory> memory_;
};

}  // namespace smartkv::kernels
