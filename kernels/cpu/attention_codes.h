// Products of rows of weights with the codes of a quantised page: C[row][i] += sum_c weight[row][c] code[i][c], on
// register tiles. Include after one vec16_codes_*.h; everything has internal linkage.
//
// A row's floats become 16-bit integers with a step of their own in each run of one width, so that a run of wide codes
// loses nothing to the large steps of narrow ones. The sums are then exact, in any order.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/quantized_page.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kRuns = 4;
constexpr int64_t weight_stride(int64_t columns) { return columns / 4 + 4; }

inline int64_t code_bytes(int64_t run, int64_t quads, int64_t extent) {
  constexpr int64_t kBits[kRuns] = {8, 4, 3, 2};
  return quads * extent * kBits[run] / 2;
}

// function(0), ..., function(N - 1) of constants: a loop that keeps arrays in registers.
template <int N, typename Function>
inline void unrolled(const Function& function) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (function(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// What turns a run's weights, of which `most` is the largest, into integers, and the step that turns them back. Weights
// below 1e-30 are nothing beside those of other pages, and their inverse could overflow.
inline Vec16 weight_factor(float most, float* step) {
  *step = most * (1.0f / kMaxWeight);
  return Vec16::set1(most > 1e-30f ? kMaxWeight / most : 0.0f);
}

// make_weights() of one run of 16 Vectors columns.
template <int Vectors>
void make_run(int64_t rows, const float* x, int64_t ldx, const uint16_t* scales, const uint16_t* zeros,
              WeightQuad* quads, int64_t ldw, float* steps, float* offsets) {
  Vec16 scale[Vectors], zero[Vectors];
  unrolled<Vectors>([&](auto i) {
    scale[i] = Vec16::load_half(scales + 16 * i);
    zero[i] = Vec16::load_half(zeros + 16 * i);
  });
  for (int64_t r = 0; r < rows; ++r) {
    Vec16 weights[Vectors], top = Vec16::zero(), offset = Vec16::zero();
    unrolled<Vectors>([&](auto i) {
      const Vec16 value = Vec16::load(x + r * ldx + 16 * i);
      weights[i] = value * scale[i];
      top = Vec16::max(top, Vec16::abs(weights[i]));
      offset = Vec16::fma(value, zero[i], offset);
    });
    const Vec16 factor = weight_factor(top.reduce_max(), steps + r * kRuns);
    unrolled<Vectors>([&](auto i) { store_weights(weights[i], factor, quads + r * ldw + 4 * i); });
    offsets[r] += offset.reduce_add();
  }
}

// make_weights() of one run of n columns.
inline void make_run(int64_t n, int64_t rows, const float* x, int64_t ldx, const uint16_t* scales,
                     const uint16_t* zeros, WeightQuad* quads, int64_t ldw, float* steps, float* offsets) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto product = [&](int64_t c, const uint16_t* halves) {
      return (Vec16::load(x + r * ldx + c) * Vec16::load_half(halves + c)).first(static_cast<int>(n - c), 0.0f);
    };
    Vec16 top = Vec16::zero(), offset = Vec16::zero();
    for (int64_t c = 0; c < n; c += 16) {
      top = Vec16::max(top, Vec16::abs(product(c, scales)));
      offset = offset + product(c, zeros);
    }
    const Vec16 factor = weight_factor(top.reduce_max(), steps + r * kRuns);
    for (int64_t c = 0; c < n; c += 16) store_weights(product(c, scales), factor, quads + r * ldw + c / 4);
    offsets[r] += offset.reduce_add();
  }
}

// Row r: weight[c] = x[c] scales[c] of all columns as quads [ldw], their step in each run in steps [kRuns], and
// offsets[r] = sum_c x[c] zeros[c]. Up to 16 columns past the end, x, scales and zeros may be read, without effect, and
// quads written: ldw is weight_stride().
inline void make_weights(const CodeRuns& runs, int64_t rows, const float* x, int64_t ldx, const uint16_t* scales,
                         const uint16_t* zeros, WeightQuad* quads, int64_t ldw, float* steps, float* offsets) {
  for (int64_t r = 0; r < rows; ++r) offsets[r] = 0.0f;
  for (int64_t run = 0; run < kRuns; ++run) {
    const int64_t n = 4 * runs.quads[run];
    switch (n) {
      case 0: continue;
      case 32: make_run<2>(rows, x, ldx, scales, zeros, quads, ldw, steps + run, offsets); break;
      case 64: make_run<4>(rows, x, ldx, scales, zeros, quads, ldw, steps + run, offsets); break;
      case 128: make_run<8>(rows, x, ldx, scales, zeros, quads, ldw, steps + run, offsets); break;
      default: make_run(n, rows, x, ldx, scales, zeros, quads, ldw, steps + run, offsets); break;
    }
    x += n, scales += n, zeros += n, quads += n / 4;
  }
}

// C [Rows][16 Groups] += step * sum over quads; the groups start at `First` of a block of 64 rows of codes. `next`
// moves along with `codes`: its lines are asked for, shared out among the tiles of a block.
template <int Bits, int Rows, int First, int Groups>
void code_tile(const uint8_t* codes, const uint8_t* next, int64_t stride, int64_t quads, const WeightQuad* weights,
               int64_t ldw, const float* steps, float* c, int64_t ldc) {
  Sums sums[Rows][Groups];
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < Groups; ++g) sums[r][g] = Sums::zero();
  }
  for (int64_t s = 0; s < quads; ++s) {
    Codes decoded[Groups];
    for (int g = 0; g < Groups; ++g) decoded[g] = Codes::decode<Bits>(codes + s * stride, First + g);
    unrolled<(Bits + 1) / 2>([&](auto line) {
      if constexpr (line % (4 / Groups) == First / Groups) Vec16::prefetch(next + s * stride + 64 * line);
    });
    for (int r = 0; r < Rows; ++r) {
      for (int g = 0; g < Groups; ++g) sums[r][g].add(decoded[g], weights[r * ldw + s]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const Vec16 step = Vec16::set1(steps[r * kRuns]);
    for (int g = 0; g < Groups; ++g) {
      float* to = c + r * ldc + 16 * (First + g);
      Vec16::fma(sums[r][g].value(), step, Vec16::load(to)).store(to);
    }
  }
}

// One run: C [rows][extent] += ...
template <int Bits>
void code_run(int64_t rows, const uint8_t* codes, const uint8_t* next, int64_t extent, int64_t quads,
              const WeightQuad* weights, int64_t ldw, const float* steps, float* c, int64_t ldc) {
  constexpr int64_t kBlock = 32 * Bits;  // bytes of 64 rows
  for (int64_t block = 0; block < extent / 64; ++block) {
    for (int64_t r = 0; r < rows;) {
      const auto tile = [&]<int Rows>(std::integral_constant<int, Rows>) {
        const uint8_t* from = codes + block * kBlock;
        unrolled<4 / kCodeGroups>([&](auto g) {
          code_tile<Bits, Rows, g * kCodeGroups, kCodeGroups>(from, r == 0 ? next + block * kBlock : from,
                                                             extent / 64 * kBlock, quads, weights + r * ldw, ldw,
                                                             steps + r * kRuns, c + r * ldc + 64 * block, ldc);
        });
        r += Rows;
      };
      const int64_t left = rows - r;
      if (left >= kCodeRows) {
        tile(std::integral_constant<int, kCodeRows>{});
      } else if (left >= 3) {
        tile(std::integral_constant<int, kCodeRows < 3 ? kCodeRows : 3>{});
      } else if (left == 2) {
        tile(std::integral_constant<int, kCodeRows < 2 ? kCodeRows : 2>{});
      } else {
        tile(std::integral_constant<int, 1>{});
      }
    }
  }
}

// All runs. C: [rows][extent], weights: [rows][ldw], steps: [rows][kRuns] as make_weights() gave them. `next`: the
// codes that will be read next, or nullptr.
inline void code_product(int64_t rows, const CodeRuns& runs, const uint8_t* codes, const uint8_t* next, int64_t extent,
                         const WeightQuad* weights, int64_t ldw, const float* steps, float* c, int64_t ldc) {
  if (next == nullptr) next = codes;
  for (int64_t run = 0; run < kRuns; ++run) {
    const int64_t quads = runs.quads[run];
    if (quads == 0) continue;
    const auto product = [&](auto bits) {
      code_run<bits>(rows, codes, next, extent, quads, weights, ldw, steps + run, c, ldc);
    };
    switch (run) {
      case 0: product(std::integral_constant<int, 8>{}); break;
      case 1: product(std::integral_constant<int, 4>{}); break;
      case 2: product(std::integral_constant<int, 3>{}); break;
      default: product(std::integral_constant<int, 2>{}); break;
    }
    const int64_t bytes = code_bytes(run, quads, extent);
    codes += bytes;
    next += bytes;
    weights += quads;
  }
}

}  // namespace
}  // namespace smartkv::kernels
