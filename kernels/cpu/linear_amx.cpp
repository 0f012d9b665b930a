// AMX with BF16. The packed layout of a lane group is what the tile product wants: a tile of weights is 16 pairs of
// inputs by 16 lanes, 1 KB as it lies; a tile of x is 16 rows by the same 32 inputs.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear_ops_avx512.h"
#include "kernels/cpu/linear_tile.h"

namespace smartkv::kernels {
namespace {

using Rows = Products<Avx512Ops>;

constexpr int64_t kTileInputs = kTileBytes / 2;
constexpr int64_t kTileWeights = kTileInputs * kLanes;  // of one lane group
constexpr int64_t kVectorRows = 2, kFewRows = kTileRows, kManyRows = 2 * kTileRows;

// Where a block begins: its first row of x and the weights of its first lane group.
struct Operands {
  const uint16_t* x;
  int64_t x_stride;  // elements
  const uint16_t* w;
  int64_t w_stride;  // from one lane group to the next, elements
  int64_t tiles;     // of whole kTileInputs
  const uint16_t* next;  // the weights that are read after these, or null
};

// The tile product as the manual defines it, on vectors: even and odd inputs of a tile of 32 in a chain of fused products
// each, the two added, then added to the sum; denormals are zeros, which is for the caller to see to. With one or two
// rows it keeps up with the memory, which loads of tiles do not (0.77 of the rate here).
template <int kRows, int kGroups>
[[gnu::noinline]] void on_vectors(const Operands& in, Rows::Prefetch prefetch, float* sums) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const uint16_t* w = in.w;
  for (int64_t t = 0; t < in.tiles; ++t, w += kTileWeights) {
    prefetch.chunk();
    __m512 even[kRows][kGroups], odd[kRows][kGroups];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) even[r][g] = odd[r][g] = _mm512_setzero_ps();
    }
    for (int64_t pair = 0; pair < kTileInputs / 2; ++pair) {
      __m512 x_even[kRows], x_odd[kRows];
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = _mm512_set1_epi32(Avx512Ops::load_word(in.x + r * in.x_stride + t * kTileInputs + 2 * pair));
        x_even[r] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        x_odd[r] = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
      }
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        const __m512i pairs = _mm512_load_si512(w + g * in.w_stride + pair * 2 * kLanes);
        const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          even[r][g] = _mm512_fmadd_ps(x_even[r], w_even, even[r][g]);
          odd[r][g] = _mm512_fmadd_ps(x_odd[r], w_odd, odd[r][g]);
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        float* sum = sums + (r * kGroups + g) * kLanes;
        const __m512 before = t == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sum);
        _mm512_store_ps(sum, _mm512_add_ps(before, _mm512_add_ps(even[r][g], odd[r][g])));
      }
    }
  }
}

// Tiles 0 to 3 hold the sums of up to 16 rows by kGroups lane groups, 4 the rows, 5 to 7 weights in turn.
template <int kGroups>
void few_rows(const Operands& in, Rows::Prefetch prefetch, float* sums) {
  constexpr int64_t kSumBytes = kGroups * kLanes * 4;
  _tile_zero(0);
  if constexpr (kGroups > 1) _tile_zero(1);
  if constexpr (kGroups > 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const uint16_t* w = in.w;
  for (int64_t k = 0; k < in.tiles; ++k, w += kTileWeights) {
    prefetch.chunk();
    _tile_loadd(4, in.x + k * kTileInputs, in.x_stride * 2);
    _tile_loadd(5, w, kTileBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kGroups > 1) {
      _tile_loadd(6, w + in.w_stride, kTileBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kGroups > 2) {
      _tile_loadd(7, w + 2 * in.w_stride, kTileBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, w + 3 * in.w_stride, kTileBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, sums, kSumBytes);
  if constexpr (kGroups > 1) _tile_stored(1, sums + kLanes, kSumBytes);
  if constexpr (kGroups > 2) {
    _tile_stored(2, sums + 2 * kLanes, kSumBytes);
    _tile_stored(3, sums + 3 * kLanes, kSumBytes);
  }
}

// Tiles 0 and 1 hold the sums of 16 rows by kGroups lane groups, 2 and 3 those of the rows after them; 4 and 5 the rows,
// 6 and 7 the weights.
template <int kGroups>
void many_rows(const Operands& in, Rows::Prefetch prefetch, float* sums) {
  constexpr int64_t kSumBytes = kGroups * kLanes * 4;
  float* const below = sums + kTileRows * kGroups * kLanes;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kGroups > 1) {
    _tile_zero(1);
    _tile_zero(3);
  }
  const uint16_t* w = in.w;
  for (int64_t k = 0; k < in.tiles; ++k, w += kTileWeights) {
    prefetch.chunk();
    _tile_loadd(4, in.x + k * kTileInputs, in.x_stride * 2);
    _tile_loadd(6, w, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, in.x + kTileRows * in.x_stride + k * kTileInputs, in.x_stride * 2);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kGroups > 1) {
      _tile_loadd(7, w + in.w_stride, kTileBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(2, below, kSumBytes);
  if constexpr (kGroups > 1) {
    _tile_stored(1, sums + kLanes, kSumBytes);
    _tile_stored(3, below + kLanes, kSumBytes);
  }
}

// Adds the products of the inputs past the last whole tile.
template <int kGroups>
void add_rest(const LinearCall& call, const Operands& in, int64_t rows, float* sums) {
  for (int64_t k = in.tiles * kTileInputs; k < call.k; k += 2) {
    for (int64_t r = 0; r < rows; ++r) {
      const int pair = Avx512Ops::load_word(in.x + r * in.x_stride + k);
      for (int64_t g = 0; g < kGroups; ++g) {
        float* sum = sums + (r * kGroups + g) * kLanes;
        const __m512i weights = _mm512_load_si512(in.w + g * in.w_stride + k * kLanes);
        _mm512_storeu_ps(sum, _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair)));
      }
    }
  }
}

// Rows [row, row + rows) by kGroups lane groups; the first `done` rows were written by another block.
template <int kGroups>
void block(const LinearCall& call, int64_t row, int64_t rows, int64_t done, int64_t group, Rows::Prefetch prefetch) {
  alignas(64) float sums[kManyRows * kGroups * kLanes];
  const auto* w = reinterpret_cast<const uint16_t*>(call.weights + group * call.lane_group_bytes);
  const int64_t stride = call.input.x_stride;
  const Operands in{static_cast<const uint16_t*>(call.input.x) + row * stride, stride, w, call.k * kLanes,
                    call.k / kTileInputs, reinterpret_cast<const uint16_t*>(prefetch.next)};
  if (rows <= kVectorRows) {
    const NoDenormals scope;
    if (in.tiles == 0) std::fill_n(sums, rows * kGroups * kLanes, 0.0f);
    rows == 1 ? on_vectors<1, kGroups>(in, prefetch, sums) : on_vectors<2, kGroups>(in, prefetch, sums);
  } else if (kGroups > 2 || rows <= kFewRows) {
    few_rows<kGroups>(in, prefetch, sums);
  } else {
    many_rows<std::min(kGroups, 2)>(in, prefetch, sums);
  }
  add_rest<kGroups>(call, in, rows, sums);
  for (int64_t r = done; r < rows; ++r) Rows::finish_row<kGroups>(call, row + r, group, sums + r * kGroups * kLanes);
}

TileScope::Rows tile_rows(int64_t rows) {
  if (rows <= kFewRows) {
    const auto n = static_cast<uint8_t>(rows);
    return {{n, n, n, n, n, 16, 16, 16}};
  }
  const auto n = static_cast<uint8_t>(rows - kTileRows);
  return {{16, 16, n, n, 16, n, 16, 16}};
}

// A row's sums run over its inputs in tiles of 32, in order, whatever the block that it is in. Blocks have one number of
// rows, so that the tiles keep their shapes; the last overlaps the one before.
void product(const LinearCall& call, const LinearTile& tile) {
  const int64_t rows = tile.row_end - tile.row_begin;
  const int64_t blocks = (rows + kManyRows - 1) / kManyRows;
  const int64_t block_rows = (rows + blocks - 1) / blocks;
  const TileScope scope(tile_rows(block_rows));
  const int64_t widest = block_rows > kFewRows ? 2 : 4;
  int64_t group = tile.group_begin;
  while (group < tile.group_end) {
    int64_t groups = widest;
    while (groups > tile.group_end - group) groups /= 2;
    const Rows::PanelPrefetch panel(call, tile, group + groups, groups, blocks, std::max<int64_t>(1, call.k / kTileInputs));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t wanted = tile.row_begin + b * block_rows;
      const int64_t begin = std::min(wanted, tile.row_end - block_rows);
      const Rows::Prefetch prefetch = panel.of_block(b);
      if (groups == 4) block<4>(call, begin, block_rows, wanted - begin, group, prefetch);
      if (groups == 2) block<2>(call, begin, block_rows, wanted - begin, group, prefetch);
      if (groups == 1) block<1>(call, begin, block_rows, wanted - begin, group, prefetch);
    }
    group += groups;
  }
}

LinearKernels with_tiles(LinearKernels kernels) {
  kernels.bf16 = &product;
  return kernels;
}

}  // namespace

const LinearKernels kLinearAmx = with_tiles(kLinearAvx512Vnni);

}  // namespace smartkv::kernels
