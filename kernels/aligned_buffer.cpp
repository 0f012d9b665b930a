#include "kernels/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace smartkv {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHuge = size_t{2} << 20;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Maps `rounded` bytes at a multiple of kHuge. Fresh pages are zero, so this function does not touch them: the thread
// that fills the buffer touches them first, on its own core.
std::byte* map_huge(size_t rounded) {
  void* mapped = mmap(nullptr, rounded + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(begin, kHuge);
  if (aligned > begin) munmap(mapped, aligned - begin);
  munmap(reinterpret_cast<void*>(aligned + rounded), begin + kHuge - aligned);
  madvise(reinterpret_cast<void*>(aligned), rounded, MADV_HUGEPAGE);  // Only a hint: small pages work too, but slower.
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

std::byte* allocate_aligned(size_t size) {
  if (size == 0) return nullptr;
  if (size >= kHuge) return map_huge(round_up(size, kHuge));
  const size_t rounded = round_up(size, kLine);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kLine, rounded));
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, rounded);
  return data;
}

void free_aligned(std::byte* data, size_t size) noexcept {
  if (size >= kHuge) {
    munmap(data, round_up(size, kHuge));
  } else {
    std::free(data);
  }
}

}  // namespace smartkv
