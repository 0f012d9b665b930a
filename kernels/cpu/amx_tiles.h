// The tile registers of AMX. Included by files that are compiled for AMX. Everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smartkv::kernels {
namespace {

constexpr int64_t kTileRows = 16;   // Most rows of a tile.
constexpr int64_t kTileBytes = 64;  // Bytes of a row.

// Sets the shapes of this thread's eight tiles for as long as the object lives. Every row has kTileBytes.
class TileScope {
 public:
  struct Rows {
    uint8_t of[8];  // Rows of each tile, up to kTileRows.
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
    // GCC 12 assumes that _tile_loadconfig() reads eight bytes, and may leave the others unwritten.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// While the object lives, denormals count as zeros, as inputs and as results, as they do in tile products. The
// arithmetic must be in a function that is not inlined: compilers do not know that it depends on this mode.
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
