// The tile registers of AMX. Included by files that are compiled for it; everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smartkv::kernels {
namespace {

constexpr int64_t kTileRows = 16;   // at most
constexpr int64_t kTileBytes = 64;  // of a row

// The shapes of the eight tiles on this thread for as long as it lives; every row has kTileBytes.
class TileScope {
 public:
  struct Rows {
    uint8_t of[8];  // tile by tile, up to kTileRows
  };

  explicit TileScope(const Rows& rows) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes[tile] = kTileBytes;
      config.rows[tile] = rows.of[tile];
    }
    // GCC 12 takes _tile_loadconfig() to read eight bytes, and may leave the others unwritten.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Denormals are zeros, in and out, for as long as it lives, as they are for tile products. What computes must be a function
// that is not inlined: compilers do not know that arithmetic depends on this.
class NoDenormals {
 public:
  NoDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned kDenormalsAreZero = 0x40, kFlushToZero = 0x8000;
    _mm_setcsr(before_ | kDenormalsAreZero | kFlushToZero);
  }
  ~NoDenormals() { _mm_setcsr(before_); }
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
  unsigned before_;
};

}  // namespace
}  // namespace smartkv::kernels
