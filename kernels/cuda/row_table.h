// Tables of rows for a launch, in host memory that is reused for rows of any type.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace smartkv::kernels::cuda {

template <typename T>
void append_row(const T& row, std::vector<std::byte>* table) {
  const size_t at = table->size();
  table->resize(at + sizeof(T));
  std::memcpy(table->data() + at, &row, sizeof(T));
}
template <typename T>
std::span<const T> rows_of(const std::vector<std::byte>& table) {
  return {reinterpret_cast<const T*>(table.data()), table.size() / sizeof(T)};
}

}  // namespace smartkv::kernels::cuda
