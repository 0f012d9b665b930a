// Buffers that a thread keeps from call to call, to save allocations.
#pragma once

#include <cstddef>
#include <vector>

namespace smartkv {

// Frees a buffer that a large text has grown, so that threads do not keep its memory.
template <typename T>
void free_if_large(std::vector<T>* buffer) {
  constexpr size_t kMostKept = size_t{1} << 16;  // bytes
  if (buffer->capacity() * sizeof(T) > kMostKept) std::vector<T>().swap(*buffer);
}

}  // namespace smartkv
