// AMX with BF16. The packed layout of a lane group is the layout of the tile product. A tile of weights is 16 pairs of
// inputs by 16 lanes, 1 KB as it lies in memory. A tile of x is 16 rows by the same 32 inputs.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/linear_ops_avx512.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/tile_product.h"

namespace smartkv::kernels {
namespace {

using Rows = Products<Avx512Ops>;

constexpr int64_t kTileInputs = kTileBytes / 2;
constexpr int64_t kTileWeights = kTileInputs * kLanes;  // Weights of one lane group in a tile.
constexpr int64_t kVectorRows = 2, kFewRows = kTileRows, kManyRows = 2 * kTileRows;

// Computes up to 32 rows. Tiles 0 and 1 hold the sums of 16 rows by kGroups lane groups, 2 and 3 the sums of the rows
// after them. 4 and 5 hold the rows, 6 and 7 the weights.
template <int kGroups>
void many_rows(const TileOperands& in, Rows::Prefetch prefetch, float* sums) {
  constexpr int64_t kSumBytes = kGroups * kLanes * 4;
  float* const below = sums + kTileRows * kGroups * kLanes;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kGroups > 1) {
    _tile_zero(1);
    _tile_zero(3);
  }
  const uint16_t* w = in.b;
  for (int64_t k = 0; k < in.tiles; ++k, w += kTileWeights) {
    prefetch.template chunk<kGroups>();
    _tile_loadd(4, in.a + k * kTileInputs, in.lda * 2);
    _tile_loadd(6, w, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, in.a + kTileRows * in.lda + k * kTileInputs, in.lda * 2);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kGroups > 1) {
      _tile_loadd(7, w + in.group_stride, kTileBytes);
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
void add_rest(const LinearCall& call, const TileOperands& in, int64_t rows, float* sums) {
  for (int64_t k = in.tiles * kTileInputs; k < call.k; k += 2) {
    for (int64_t r = 0; r < rows; ++r) {
      const int pair = Avx512Ops::load_word(in.a + r * in.lda + k);
      for (int64_t g = 0; g < kGroups; ++g) {
        float* sum = sums + (r * kGroups + g) * kLanes;
        const __m512i weights = _mm512_load_si512(in.b + g * in.group_stride + k * kLanes);
        _mm512_storeu_ps(sum,
                         _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)weights, (__m512bh)_mm512_set1_epi32(pair)));
      }
    }
  }
}

// Computes rows [row, row + rows) by kGroups lane groups. Another block has written the first `done` rows.
template <int kGroups>
void block(const LinearCall& call, int64_t row, int64_t rows, int64_t done, int64_t group, Rows::Prefetch prefetch) {
  alignas(64) float sums[kManyRows * kGroups * kLanes];
  const auto* w = reinterpret_cast<const uint16_t*>(call.weights + group * call.lane_group_bytes);
  const int64_t stride = call.input.x_stride;
  const TileOperands in{static_cast<const uint16_t*>(call.input.x) + row * stride,
                        stride,
                        w,
                        2 * kLanes,
                        call.k * kLanes,
                        call.k / kTileInputs};
  const auto ask = [&prefetch](int64_t step) {
    if (step % kTileSteps == 0) prefetch.template chunk<kGroups>();
  };
  constexpr int64_t kWidth = kGroups * kLanes;
  if (rows <= kVectorRows) {
    const NoDenormals scope;
    rows == 1 ? product_on_vectors<1, kGroups>(in, sums, kWidth, false, ask)
              : product_on_vectors<2, kGroups>(in, sums, kWidth, false, ask);
  } else if (kGroups > 2 || rows <= kFewRows) {
    product_on_tiles<kGroups>(in, sums, kWidth, false, ask);
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

// The sums of a row run over its inputs in tiles of 32, in order, whatever block the row is in. All blocks have the
// same number of rows, so that the tiles keep their shapes. The last block overlaps the one before it.
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
    const Rows::PanelPrefetch panel(call, tile, group, groups, blocks, std::max<int64_t>(1, call.k / kTileInputs));
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

}  // namespace

constinit const LinearKernels::Product kBf16OnTiles = &product;

}  // namespace smartkv::kernels
