#include "kernels/quantized_page.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/cpu_kernels.h"
#include "kernels/half.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kBlockCodes = 4 * kBlockRows;

struct Column {
  uint16_t scale = 0, zero = 0;  // f16. The scale is per unit of a byte, not of a code.
};

// Returns the step of a code of this width in units of its byte.
float unit_of(int bits) { return static_cast<float>(1 << (8 - bits)); }

CodeLine line_of(Column column, int bits) {
  return {half_to_float(column.scale) * unit_of(bits), half_to_float(column.zero), static_cast<float>((1 << bits) - 1)};
}

// Returns the column of codes of this width with a step of `scale`, clamped to the range of f16.
Column column_of(float low, float scale, int bits) {
  constexpr float kMost = 65504.0f;  // The largest f16.
  return {float_to_half(std::clamp(scale / unit_of(bits), 0.0f, kMost)), float_to_half(std::clamp(low, -kMost, kMost))};
}

// Returns the scale and zero with the least squared error for x [n], given its codes. sum_x: the sum of x. Returns
// `column` if all codes are equal.
Column refit(const CodeFit& codes, float sum_x, int64_t n, int bits, Column column) {
  const auto count = static_cast<float>(n);
  const float variance = codes.sum_cc - codes.sum_c * codes.sum_c / count;
  if (!(variance > 0)) return column;
  const float scale = (codes.sum_xc - sum_x * codes.sum_c / count) / variance;
  return column_of((sum_x - scale * codes.sum_c) / count, scale, bits);
}

// How the line of a column is chosen.
enum class Fit : uint8_t {
  kRange,         // From the least value to the greatest.
  kLeastSquares,  // The best of several shrunken ranges, then refitted (Lloyd 1982).
};

Range range_of(const float* x, int64_t n) {
  const Range range = cpu_kernels().elementwise->range(x, n);
  // The sum is not finite if a value is not. Finite values very rarely give such a sum, too.
  if (!std::isfinite(range.sum) && !std::all_of(x, x + n, [](float value) { return std::isfinite(value); })) {
    throw std::invalid_argument("quantize_page: expected finite values, found NaN or infinity");
  }
  return range;
}

// Computes scale, zero and codes of a column. n is a multiple of 16.
Column quantize_column(const float* x, int64_t n, int bits, Fit fit, uint8_t* codes) {
  const ElementwiseKernels& kernels = *cpu_kernels().elementwise;
  const Range range = range_of(x, n);
  const float levels = static_cast<float>((1 << bits) - 1), half = (range.high - range.low) / 2;
  const float middle = (range.low + range.high) / 2;
  Column best = column_of(range.low, 2 * half / levels, bits);
  if (fit == Fit::kLeastSquares && bits <= 4) {
    CodeFit least = kernels.measure_codes(x, n, line_of(best, bits));
    const auto take_if_better = [&](Column column) {
      const CodeFit trial = kernels.measure_codes(x, n, line_of(column, bits));
      if (!(trial.error < least.error)) return false;
      least = trial;
      best = column;
      return true;
    };
    const float narrowest = bits == 2 ? 0.5f : bits == 3 ? 0.7f : 0.85f;
    for (float shrink = 0.95f; shrink > narrowest; shrink -= 0.05f) {
      take_if_better(column_of(middle - shrink * half, 2 * shrink * half / levels, bits));
    }
    constexpr int kRefits = 4;
    for (int i = 0; i < kRefits && take_if_better(refit(least, range.sum, n, bits, best)); ++i) {
    }
  }
  kernels.encode(x, n, line_of(best, bits), codes);
  return best;
}

// Returns a plane of bits: bit i of byte b is bit 2 of code 8 b + i.
std::array<uint8_t, kBlockCodes / 8> third_bits(const uint8_t* codes) {
  std::array<uint8_t, kBlockCodes / 8> bits;
  for (size_t b = 0; b < bits.size(); ++b) {
    uint64_t eight;  // little-endian, as all CPUs of these kernels are
    std::memcpy(&eight, codes + 8 * b, sizeof eight);
    // The product adds bit 8 i, shifted by 56 - 7 i, to bit 56 + i. No two of its terms meet.
    bits[b] = static_cast<uint8_t>(((eight >> 2 & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
  }
  return bits;
}

// Interleaves kBlockRows rows of a quad's four columns: block [row][4].
void interleave(const uint8_t (&columns)[4][256], int64_t first, uint8_t* block) {
  for (int64_t row = 0; row < kBlockRows; ++row) {
    for (int64_t c = 0; c < 4; ++c) block[4 * row + c] = columns[c][first + row];
  }
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
    default:  // 2 bits, and 3 bits with a separate plane for the third bit
      for (int64_t i = 0; i < 64; ++i) {
        int byte = 0;
        for (int64_t s = 0; s < 4; ++s) byte |= (codes[64 * s + i] & 3) << (2 * s);
        out[i] = static_cast<uint8_t>(byte);
      }
      if (bits == 3) {
        std::memcpy(out + 64, third_bits(codes).data(), 32);
      }
  }
}

void unpack_block(const uint8_t* in, int bits, uint8_t* codes) {
  switch (bits) {
    case 8: std::copy_n(in, kBlockCodes, codes); break;
    case 4:
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 64; ++i) {
          codes[128 * h + i] = in[64 * h + i] & 15;
          codes[128 * h + 64 + i] = in[64 * h + i] >> 4;
        }
      }
      break;
    default:
      for (int64_t s = 0; s < 4; ++s) {
        for (int64_t i = 0; i < 64; ++i) codes[64 * s + i] = static_cast<uint8_t>(in[i] >> (2 * s) & 3);
      }
      if (bits == 3) {
        for (int64_t c = 0; c < kBlockCodes; ++c) {
          codes[c] = static_cast<uint8_t>(codes[c] | (in[64 + c / 8] >> (c % 8) & 1) << 2);
        }
      }
  }
}

// Quantizes the columns of one side, K or V.
// Value `row` of column `c` is x[index(c) * column_stride + row * row_stride].
template <typename Index>
void quantize_side(const CodeRuns& runs, int64_t extent, Fit fit, const float* x, int64_t column_stride,
                   int64_t row_stride, const Index& index, uint16_t* scales, uint16_t* zeros, uint8_t* out) {
  int64_t column = 0;
  uint8_t codes[4][256], block[kBlockCodes];
  float values[256];
  const auto read = [&](int64_t c) {
    const float* from = x + index(c) * column_stride;
    for (int64_t row = 0; row < extent; ++row) values[row] = from[row * row_stride];
  };
  for (size_t run = 0; run < kCodeBits.size(); ++run) {
    const int bits = kCodeBits[run];
    for (int64_t quad = 0; quad < runs.quads[run]; ++quad, column += 4) {
      for (int64_t j = 0; j < 4; ++j) {
        read(column + j);
        const Column of = quantize_column(values, extent, bits, fit, codes[j]);
        std::fill(codes[j] + extent, codes[j] + block_rows(extent), uint8_t{0});
        scales[column + j] = of.scale;
        zeros[column + j] = of.zero;
      }
      for (int64_t row = 0; row < extent; row += kBlockRows, out += kBlockCodes * bits / 8) {
        interleave(codes, row, block);
        pack_block(block, bits, out);
      }
    }
  }
  for (; column < 4 * runs.n_quads(); ++column) {
    read(column);
    zeros[column] = column_of(range_of(values, extent).sum / static_cast<float>(extent), 0, 8).zero;
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
      CodeLine lines[4];
      float* to[4];
      for (int64_t j = 0; j < 4; ++j) {
        lines[j] = line_of({scales[column + j], zeros[column + j]}, bits);
        to[j] = x + index(column + j) * column_stride;
      }
      for (int64_t row = 0; row < extent; row += kBlockRows, in += kBlockCodes * bits / 8) {
        unpack_block(in, bits, block);
        for (int64_t c = 0; c < 4 * std::min(kBlockRows, extent - row); ++c) {
          const CodeLine& line = lines[c % 4];
          to[c % 4][(row + c / 4) * row_stride] = line.zero + line.scale * static_cast<float>(block[c]);
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

void check_layout(const QuantizedLayout& layout, int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 16 != 0 || head_dim > 256) {
    throw std::invalid_argument("quantized page: head_dim must be a multiple of 16 up to 256, found " +
                                std::to_string(head_dim));
  }
  if (4 * layout.k.n_quads() != head_dim || 4 * layout.v.n_quads() != kPageTokens) {
    throw std::invalid_argument("quantized page: expected quads of " + std::to_string(head_dim) + " channels and " +
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
    throw std::invalid_argument("quantized page: bits must be 8, 4, 3 or 2, found " + std::to_string(bits));
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
  check_layout(layout, head_dim);
  const QuantizedOffsets at = quantized_offsets(layout, head_dim);
  auto* base = static_cast<uint8_t*>(block);
  const auto halves = [&](int64_t offset) { return reinterpret_cast<uint16_t*>(base + offset); };
  const auto channel = [&](int64_t c) { return channel_order == nullptr ? c : int64_t{channel_order[c]}; };
  quantize_side(layout.k, kPageTokens, Fit::kLeastSquares, k, 1, head_dim, channel, halves(at.k_scales),
                halves(at.k_zeros), base + at.k_codes);
  quantize_side(
      layout.v, head_dim, Fit::kRange, v, head_dim, 1, [](int64_t t) { return t; }, halves(at.v_scales),
      halves(at.v_zeros), base + at.v_codes);
}

void dequantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const void* block,
                     float* k, float* v) {
  check_layout(layout, head_dim);
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
