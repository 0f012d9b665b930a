// Common parts of the fuzz targets. Each target is a file with LLVMFuzzerTestOneInput (libFuzzer), run by
// scripts/fuzz.sh. A target catches the exceptions that its code promises to throw. Any other exception, and any report
// of a sanitizer, is a finding.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace smartkv::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// Returns a directory that belongs to this process.
inline const std::filesystem::path& scratch_directory() {
  static const std::filesystem::path path = [] {
    auto directory = std::filesystem::temp_directory_path() / ("smartkv_fuzz." + std::to_string(::getpid()));
    std::filesystem::create_directories(directory);
    return directory;
  }();
  return path;
}

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace smartkv::fuzz
