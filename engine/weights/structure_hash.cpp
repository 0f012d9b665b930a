#include "engine/weights/structure_hash.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <new>
#include <stdexcept>
#include <vector>

namespace smartkv {

StructureHash::StructureHash() : state_(XXH3_createState(), XXH3_freeState) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void StructureHash::add_bytes(const void* data, size_t n) { XXH3_128bits_update(state_.get(), data, n); }

void StructureHash::add_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(1 << 16);
  uint64_t size = 0;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    add_bytes(block.data(), static_cast<size_t>(file.gcount()));
    size += static_cast<uint64_t>(file.gcount());
  }
  if (!file.eof()) throw std::runtime_error(path.string() + ": cannot be read");
  add(size);
}

std::string StructureHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  std::array<char, 33> text;
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

}  // namespace smartkv
