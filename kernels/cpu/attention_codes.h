// Products of rows of floats with the codes of quantized pages: C[row][i] += sum_c x[row][c] value[i][c]. Include after
// one vec16_codes_*.h. Everything has internal linkage.
//
// The floats of a row times the scales of the columns become 16-bit integers, the weights, with one step for the row.
// The codes become bytes. The sums of their products are then exact, in any order.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/calibrated_page.h"
#include "kernels/quantized_page.h"

namespace smartkv::kernels {
namespace {

// Calls function(0), ..., function(N - 1) with constants. Such a loop keeps arrays in registers.
template <int N, typename Function>
inline void unrolled(const Function& function) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (function(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// Loads the scales and zeros of n columns (a multiple of 16) as floats. The first 4 coded_quads columns have codes. The
// scale of the others is 0.
inline void load_columns(const CodeRuns& runs, int64_t n, const uint16_t* half_scales, const uint16_t* half_zeros,
                         float* scales, float* zeros) {
  const int64_t coded = 4 * runs.coded_quads();
  for (int64_t c = 0; c < n; c += 16) {
    Vec16 scale = Vec16::load_half(half_scales + c);
    if (coded < c + 16) scale = scale.first(static_cast<int>(coded - c), 0.0f);
    scale.store(scales + c);
    Vec16::load_half(half_zeros + c).store(zeros + c);
  }
}

// Computes the weights of one row, x[c] scales[c] of n columns (a multiple of 64) over *step, and *offset = sum_c x[c]
// zeros[c].
inline void make_weights(int64_t n, const float* x, const float* scales, const float* zeros, uint8_t* weights,
                         float* step, float* offset) {
  Vec16 top[4], sum[4];
  unrolled<4>([&](auto i) { top[i] = sum[i] = Vec16::zero(); });
  for (int64_t c = 0; c < n; c += 64) {
    unrolled<4>([&](auto i) {
      const Vec16 value = Vec16::load(x + c + 16 * i);
      top[i] = Vec16::max_abs(top[i], value * Vec16::load(scales + c + 16 * i));
      sum[i] = Vec16::fma(value, Vec16::load(zeros + c + 16 * i), sum[i]);
    });
  }
  const float most = Vec16::max(Vec16::max(top[0], top[1]), Vec16::max(top[2], top[3])).reduce_max();
  *offset = ((sum[0] + sum[1]) + (sum[2] + sum[3])).reduce_add();
  *step = most * (1.0f / kMaxWeight);
  // Weights below 1e-30 count for nothing beside those of other pages, and their inverse could overflow.
  const Vec16 factor = Vec16::set1(most > 1e-30f ? kMaxWeight / most : 0.0f);
  for (int64_t c = 0; c < n; c += 16) {
    store_weights(Vec16::load(x + c) * Vec16::load(scales + c), factor, weights, n, c);
  }
}

// Prefetches a block of 256 codes.
template <int Bits>
void prefetch_codes(const uint8_t* next) {
  for (int line = 0; line < (Bits + 1) / 2; ++line) Vec16::prefetch(next + 64 * line);
}

template <int Bits>
void decode_run(int64_t blocks, const uint8_t*& codes, const uint8_t*& next, uint8_t*& bytes) {
  for (int64_t i = 0; i < blocks; ++i, codes += 32 * Bits, next += 32 * Bits, bytes += 256) {
    prefetch_codes<Bits>(next);
    decode_block<Bits>(codes, bytes);
  }
}

// Returns the bytes of all quads, [quads][block_rows(extent)][4]. They are decoded into `bytes`. If all `quads` quads
// have codes of 8 bits, the codes themselves are the bytes. next: the codes to prefetch for the next call, or null.
inline const uint8_t* decode(const CodeRuns& runs, const uint8_t* codes, const uint8_t* next, int64_t extent,
                             int64_t quads, uint8_t* bytes) {
  const int64_t blocks = block_rows(extent) / kBlockRows;
  if (next == nullptr) next = codes;
  if (runs.quads[0] == quads) {
    for (int64_t line = 0; line < 4 * blocks * runs.quads[0]; ++line) Vec16::prefetch(next + 64 * line);
    return codes;
  }
  uint8_t* to = bytes;
  decode_run<8>(blocks * runs.quads[0], codes, next, to);
  decode_run<4>(blocks * runs.quads[1], codes, next, to);
  decode_run<3>(blocks * runs.quads[2], codes, next, to);
  decode_run<2>(blocks * runs.quads[3], codes, next, to);
  return bytes;
}

// Calls function(Bits) for each width of a calibrated page, as a constant.
template <typename Function>
void for_each_width(const Function& function) {
  [&]<size_t... Run>(std::index_sequence<Run...>) {
    (function(std::integral_constant<size_t, Run>{}), ...);
  }(std::make_index_sequence<kWidths.size()>{});
}

// Decodes the keys of a calibrated page to their levels + 128: [quads][kPageTokens][4]. next: the codes to prefetch for
// the next call, or null.
inline void decode_keys(const ChannelWidths& side, const uint8_t* codes, const uint8_t* next, uint8_t* bytes) {
  if (next == nullptr) next = codes;
  for_each_width([&](auto run) {
    constexpr int kBits = kWidths[run];
    for (int quad = 0; quad < side.quads[run]; ++quad, codes += 32 * kBits, next += 32 * kBits, bytes += 256) {
      prefetch_codes<kBits>(next);
      decode_levels<kBits, 64>(codes, bytes, 64);
    }
  });
}

// Decodes its values to [kPageTokens / 4][n][4]: the levels + 128 of four tokens. Channels without codes get 128. next:
// as for decode_keys().
inline void decode_values(const ChannelWidths& side, const uint8_t* codes, const uint8_t* next, int64_t n,
                          uint8_t* bytes) {
  if (next == nullptr) next = codes;
  uint8_t* to = bytes;
  for_each_width([&](auto run) {
    constexpr int kBits = kWidths[run];
    int quads = side.quads[run];
    for (; quads >= 4; quads -= 4, to += 64) {
      for (int64_t i = 0; i < 4; ++i, codes += 32 * kBits, next += 32 * kBits) {
        prefetch_codes<kBits>(next);
        decode_levels<kBits, 64>(codes, to + 16 * i * n, 4 * n);
      }
    }
    for (; quads > 0; --quads, to += 16, codes += 32 * kBits, next += 32 * kBits) {
      prefetch_codes<kBits>(next);
      decode_levels<kBits, 16>(codes, to, 4 * n);
    }
  });
  const int64_t rest = 4 * n - (to - bytes);
  for (int64_t four = 0; rest > 0 && four < kPageTokens / 4; ++four, to += 4 * n) {
    std::memset(to, 128, static_cast<size_t>(rest));
  }
}

// Decodes 16-slot blocks [first, end) of one tier of a page with two tiers to the same places: of keys, or of values,
// of which a row of bytes has 4 n.
inline void decode_tier_keys(const QuadWidths& quads, const uint8_t* codes, int64_t first, int64_t end,
                             uint8_t* bytes) {
  for_each_width([&](auto run) {
    constexpr int kBits = kWidths[run];
    for (int quad = 0; quad < quads[run]; quad += 4, bytes += 1024) {
      for (int64_t i = first; i < end; ++i, codes += 32 * kBits) decode_levels<kBits, 64>(codes, bytes + 64 * i, 256);
    }
  });
}

inline void decode_tier_values(const QuadWidths& quads, const uint8_t* codes, int64_t first, int64_t end, int64_t n,
                               uint8_t* bytes) {
  for_each_width([&](auto run) {
    constexpr int kBits = kWidths[run];
    for (int quad = 0; quad < quads[run]; quad += 4, bytes += 64) {
      for (int64_t i = first; i < end; ++i, codes += 32 * kBits) {
        decode_levels<kBits, 64>(codes, bytes + 16 * i * n, 4 * n);
      }
    }
  });
}

// Decoded columns. Columns past 4 quads have weights of zero, but their bytes may still be read.
struct CodePart {
  const uint8_t* bytes;
  int64_t quads, columns;  // columns: a multiple of 64
};

// Rows of weights, [rows][2 n] bytes, with their steps and offsets.
struct CodeRows {
  int64_t rows, n;
  const uint8_t* weights;
  const float *steps, *offsets;
};

}  // namespace
}  // namespace smartkv::kernels

#ifdef __AMX_INT8__
#include "kernels/cpu/code_product_amx.h"
#else
#include "kernels/cpu/code_product.h"
#endif
