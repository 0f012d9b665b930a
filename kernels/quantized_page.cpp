#include "kernels/quantized_page.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/half.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kBlockRows = 64;
constexpr int64_t kBlockCodes = 4 * kBlockRows;

struct Column {
  uint16_t scale = 0, zero = 0;  // f16; the scale is of bytes
};

// What a code of this width stands for in bytes.
float unit_of(int bits) { return static_cast<float>(1 << (8 - bits)); }

// Codes of x [n] under a column's scale and zero. Returns the squared error.
float encode(const float* x, int64_t n, int bits, Column column, uint8_t* codes) {
  const float scale = half_to_float(column.scale) * unit_of(bits), zero = half_to_float(column.zero);
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f, most = static_cast<float>((1 << bits) - 1);
  float error = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto code = static_cast<int32_t>(std::min(std::max((x[i] - zero) * inverse, 0.0f), most) + 0.5f);
    const float difference = x[i] - (zero + scale * static_cast<float>(code));
    error += difference * difference;
    codes[i] = static_cast<uint8_t>(code);
  }
  return error;
}

// Codes of this width with a step of `scale`.
Column column_of(float low, float scale, int bits) {
  constexpr float kMost = 65504.0f;  // of f16
  return {float_to_half(std::clamp(scale / unit_of(bits), 0.0f, kMost)), float_to_half(std::clamp(low, -kMost, kMost))};
}

// The scale and zero that fit x best in the least-squares sense, given its codes.
Column refit(const float* x, int64_t n, const uint8_t* codes, int bits, Column column) {
  float sum_x = 0, sum_c = 0, sum_cc = 0, sum_xc = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto c = static_cast<float>(codes[i]);
    sum_x += x[i];
    sum_c += c;
    sum_cc += c * c;
    sum_xc += x[i] * c;
  }
  const auto count = static_cast<float>(n);
  const float variance = sum_cc - sum_c * sum_c / count;
  if (!(variance > 0)) return column;
  const float scale = (sum_xc - sum_x * sum_c / count) / variance;
  return column_of((sum_x - scale * sum_c) / count, scale, bits);
}

enum class Fit : uint8_t {
  kRange,         // from the least value to the greatest
  kLeastSquares,  // the best of several shrunken ranges, refitted (Lloyd 1982)
};

// Scale, zero and codes of a column.
Column quantize_column(const float* x, int64_t n, int bits, Fit fit, uint8_t* codes) {
  const auto [low, high] = std::minmax_element(x, x + n);
  const float levels = static_cast<float>((1 << bits) - 1), middle = (*low + *high) / 2, half = (*high - *low) / 2;
  Column best = column_of(*low, 2 * half / levels, bits);
  float least = encode(x, n, bits, best, codes);
  if (fit == Fit::kRange || bits > 4) return best;
  uint8_t trial[256];
  const auto take_if_better = [&](Column column) {
    const float error = encode(x, n, bits, column, trial);
    if (!(error < least)) return false;
    least = error;
    best = column;
    std::copy_n(trial, n, codes);
    return true;
  };
  const float narrowest = bits == 2 ? 0.5f : bits == 3 ? 0.7f : 0.85f;
  for (float shrink = 0.95f; shrink > narrowest; shrink -= 0.05f) {
    take_if_better(column_of(middle - shrink * half, 2 * shrink * half / levels, bits));
  }
  constexpr int kRefits = 4;
  for (int i = 0; i < kRefits && take_if_better(refit(x, n, codes, bits, best)); ++i) {
  }
  return best;
}

void pack_block(const uint8_t* codes, int bits, uint8_t* out) {  // codes: [256]
  switch (bits) {
    case 8: std::copy_n(codes, kBlockCodes, out); break;
    case 4:
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 64; ++i) {
          out[64 * h + i] = static_cast<uint8_t>(codes[128 * h + i] | codes[128 * h + 64 + i] << 4);
        }
      }
      break;
    default:  // 2, and 3 with a plane of its own for the third bit
      for (int64_t i = 0; i < 64; ++i) {
        int byte = 0;
        for (int64_t s = 0; s < 4; ++s) byte |= (codes[64 * s + i] & 3) << (2 * s);
        out[i] = static_cast<uint8_t>(byte);
      }
      if (bits == 3) {
        std::fill_n(out + 64, 32, uint8_t{0});
        for (int64_t c = 0; c < kBlockCodes; ++c) {
          out[64 + c / 8] = static_cast<uint8_t>(out[64 + c / 8] | (codes[c] >> 2) << (c % 8));
        }
      }
  }
}

void unpack_block(const uint8_t* in, int bits, uint8_t* codes) {
  for (int64_t c = 0; c < kBlockCodes; ++c) {
    switch (bits) {
      case 8: codes[c] = in[c]; break;
      case 4: codes[c] = static_cast<uint8_t>(in[64 * (c / 128) + c % 64] >> (4 * (c / 64 % 2)) & 15); break;
      default:
        codes[c] = static_cast<uint8_t>(in[c % 64] >> (2 * (c / 64)) & 3);
        if (bits == 3) codes[c] = static_cast<uint8_t>(codes[c] | (in[64 + c / 8] >> (c % 8) & 1) << 2);
    }
  }
}

// The columns of one side. Value `row` of column `c` is x[index(c) * column_stride + row * row_stride].
template <typename Index>
void quantize_side(const CodeRuns& runs, int64_t extent, Fit fit, const float* x, int64_t column_stride, int64_t row_stride,
                   const Index& index, uint16_t* scales, uint16_t* zeros, uint8_t* out) {
  int64_t column = 0;
  uint8_t codes[4][256], block[kBlockCodes];
  float values[256];
  const auto read = [&](int64_t c) {
    const float* from = x + index(c) * column_stride;
    for (int64_t row = 0; row < extent; ++row) values[row] = from[row * row_stride];
    if (!std::all_of(values, values + extent, [](float value) { return std::isfinite(value); })) {
      throw std::invalid_argument("quantize_page: expected finite values, found one that is not");
    }
  };
  for (size_t run = 0; run < kCodeBits.size(); ++run) {
    const int bits = kCodeBits[run];
    for (int64_t quad = 0; quad < runs.quads[run]; ++quad, column += 4) {
      for (int64_t j = 0; j < 4; ++j) {
        read(column + j);
        const Column of = quantize_column(values, extent, bits, fit, codes[j]);
        scales[column + j] = of.scale;
        zeros[column + j] = of.zero;
      }
      for (int64_t row = 0; row < extent; row += kBlockRows, out += kBlockCodes * bits / 8) {
        for (int64_t c = 0; c < kBlockCodes; ++c) block[c] = codes[c % 4][row + c / 4];
        pack_block(block, bits, out);
      }
    }
  }
  for (; column < 4 * runs.n_quads(); ++column) {
    read(column);
    zeros[column] = column_of(std::accumulate(values, values + extent, 0.0f) / static_cast<float>(extent), 0, 8).zero;
  }
}

template <typename Index>
void dequantize_side(const CodeRuns& runs, int64_t extent, const uint16_t* scales, const uint16_t* zeros,
                     const uint8_t* in, float* x, int64_t column_stride, int64_t row_stride, const Index& index) {
  int64_t column = 0;
  uint8_t block[kBlockCodes];
  for (size_t run = 0; run < kCodeBits.size(); ++run) {
    const int bits = kCodeBits[run];
    for (int64_t quad = 0; quad < runs.quads[run]; ++quad, column += 4) {
      for (int64_t row = 0; row < extent; row += kBlockRows, in += kBlockCodes * bits / 8) {
        unpack_block(in, bits, block);
        for (int64_t c = 0; c < kBlockCodes; ++c) {
          const int64_t j = column + c % 4;
          x[index(j) * column_stride + (row + c / 4) * row_stride] =
              half_to_float(zeros[j]) + half_to_float(scales[j]) * unit_of(bits) * static_cast<float>(block[c]);
        }
      }
    }
  }
  for (; column < 4 * runs.n_quads(); ++column) {
    for (int64_t row = 0; row < extent; ++row) {
      x[index(column) * column_stride + row * row_stride] = half_to_float(zeros[column]);
    }
  }
}

void check(const QuantizedLayout& layout, int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 64 != 0 || head_dim > 256) {
    throw std::invalid_argument("quantised page: head_dim must be 64, 128, 192 or 256, found " + std::to_string(head_dim));
  }
  if (4 * layout.k.n_quads() != head_dim || 4 * layout.v.n_quads() != kPageTokens) {
    throw std::invalid_argument("quantised page: expected quads of " + std::to_string(head_dim) + " channels and " +
                                std::to_string(kPageTokens) + " tokens, found " +
                                std::to_string(4 * layout.k.n_quads()) + " and " +
                                std::to_string(4 * layout.v.n_quads()));
  }
}

}  // namespace

CodeRuns uniform_runs(int64_t columns, int bits) {
  CodeRuns runs;
  for (size_t i = 0; i < kCodeBits.size(); ++i) {
    if (kCodeBits[i] == bits) runs.quads[i] = static_cast<uint8_t>(columns / 4);
  }
  if (runs.n_quads() == 0) {
    throw std::invalid_argument("quantised page: bits must be 8, 4, 3 or 2, found " + std::to_string(bits));
  }
  return runs;
}

QuantizedOffsets quantized_offsets(const QuantizedLayout& layout, int64_t head_dim) {
  QuantizedOffsets at{};
  at.k_scales = 0;
  at.k_zeros = 8 * layout.k.coded_quads();
  at.v_scales = at.k_zeros + 2 * head_dim;
  at.v_zeros = at.v_scales + 8 * layout.v.coded_quads();
  at.k_codes = (at.v_zeros + 2 * kPageTokens + 63) / 64 * 64;
  at.v_codes = at.k_codes + layout.k.bytes(kPageTokens);
  at.total = at.v_codes + layout.v.bytes(head_dim);
  return at;
}

void quantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const float* k,
                   const float* v, void* block) {
  check(layout, head_dim);
  const QuantizedOffsets at = quantized_offsets(layout, head_dim);
  auto* base = static_cast<uint8_t*>(block);
  const auto halves = [&](int64_t offset) { return reinterpret_cast<uint16_t*>(base + offset); };
  const auto channel = [&](int64_t c) { return channel_order == nullptr ? c : int64_t{channel_order[c]}; };
  quantize_side(layout.k, kPageTokens, Fit::kLeastSquares, k, 1, head_dim, channel, halves(at.k_scales), halves(at.k_zeros),
                base + at.k_codes);
  quantize_side(layout.v, head_dim, Fit::kRange, v, head_dim, 1, [](int64_t t) { return t; }, halves(at.v_scales),
                halves(at.v_zeros), base + at.v_codes);
}

void dequantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const void* block,
                     float* k, float* v) {
  check(layout, head_dim);
  const QuantizedOffsets at = quantized_offsets(layout, head_dim);
  const auto* base = static_cast<const uint8_t*>(block);
  const auto halves = [&](int64_t offset) { return reinterpret_cast<const uint16_t*>(base + offset); };
  const auto channel = [&](int64_t c) { return channel_order == nullptr ? c : int64_t{channel_order[c]}; };
  dequantize_side(layout.k, kPageTokens, halves(at.k_scales), halves(at.k_zeros), base + at.k_codes, k, 1, head_dim,
                  channel);
  dequantize_side(layout.v, head_dim, halves(at.v_scales), halves(at.v_zeros), base + at.v_codes, v, head_dim, 1,
                  [](int64_t t) { return t; });
}

}  // namespace smartkv::kernels
