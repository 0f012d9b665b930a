#include "engine/weights/tensor_view.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "engine/weights/codebooks.h"
#include "engine/weights/k_quants.h"
#include "engine/weights/packed_integers.h"
#include "kernels/half.h"
#include "kernels/linear.h"

namespace smartkv {
namespace {

// The functions below expand one block of a format (one element of plain floats) at `p` to f32.
void q4_0(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((p[2 + i] & 15) - 8);
    y[i + 16] = d * static_cast<float>((p[2 + i] >> 4) - 8);
  }
}
void q4_1(const uint8_t* p, float* y) {
  const float d = read_f16(p), m = read_f16(p + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(p[4 + i] & 15) + m;
    y[i + 16] = d * static_cast<float>(p[4 + i] >> 4) + m;
  }
}
// Returns the fifth bit of element i, which is bit i of `high`.
int fifth(uint32_t high, int i) { return static_cast<int>((high >> i) & 1u) << 4; }
void q5_0(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  const uint32_t high = read_number<uint32_t>(p + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(((p[6 + i] & 15) | fifth(high, i)) - 16);
    y[i + 16] = d * static_cast<float>(((p[6 + i] >> 4) | fifth(high, i + 16)) - 16);
  }
}
void q5_1(const uint8_t* p, float* y) {
  const float d = read_f16(p), m = read_f16(p + 2);
  const uint32_t high = read_number<uint32_t>(p + 4);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((p[8 + i] & 15) | fifth(high, i)) + m;
    y[i + 16] = d * static_cast<float>((p[8 + i] >> 4) | fifth(high, i + 16)) + m;
  }
}
void q8_0(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
}
void q8_1(const uint8_t* p, float* y) {  // An f16 with the sum of the weights lies before the integers.
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(p[4 + i]));
}

void q2_k(const uint8_t* p, float* y) {
  const float d = read_f16(p + 80), dmin = read_f16(p + 82);
  for (int group = 0; group < 16; ++group) {  // A group is 16 weights with a scale and a minimum of 4 bits each.
    const float scale = d * static_cast<float>(p[group] & 15), minimum = dmin * static_cast<float>(p[group] >> 4);
    const uint8_t* q = p + 16 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) y[16 * group + i] = scale * static_cast<float>((q[i] >> shift) & 3) - minimum;
  }
}
void q3_k(const uint8_t* p, float* y) {
  const uint8_t* high = p;
  const uint8_t* scales = p + 96;
  const float d = read_f16(p + 108);
  for (int group = 0; group < 16; ++group) {  // A group is 16 weights with a scale of 6 bits.
    const int scale = q3_k_scale(scales, group);
    const uint8_t* q = p + 32 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2, bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int value = ((q[i] >> shift) & 3) - (((high[group % 2 * 16 + i] >> bit) & 1) != 0 ? 0 : 4);
      y[16 * group + i] = d * static_cast<float>(scale) * static_cast<float>(value);
    }
  }
}

// Expands 16 bytes through a table of levels: first the low halves, then the high halves.
void look_up(const uint8_t* table, int centre, float d, const uint8_t* q, float* y) {
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(table[q[i] & 15] - centre);
    y[i + 16] = d * static_cast<float>(table[q[i] >> 4] - centre);
  }
}
void iq4(float d, const uint8_t* q, float* y) { look_up(kernels::kIq4Levels, kernels::kIq4Centre, d, q, y); }
void iq4_nl(const uint8_t* p, float* y) { iq4(read_f16(p), p + 2, y); }
void iq4_xs(const uint8_t* p, float* y) {
  for (int j = 0; j < 8; ++j) iq4(read_f16(p) * static_cast<float>(iq4_xs_scale(p, j)), p + 8 + 16 * j, y + 32 * j);
}
void mxfp4(const uint8_t* p, float* y) {
  look_up(kernels::kFp4Levels, kernels::kFp4Centre, mxfp4_scale(p[0]), p + 1, y);
}
void nvfp4(const uint8_t* p, float* y) {
  for (int i = 0; i < 64; ++i) {  // Each of the four scales has 16 weights in 8 bytes.
    const uint8_t both = p[4 + i / 16 * 8 + i % 8];
    const int level = kernels::kFp4Levels[i % 16 < 8 ? both & 15 : both >> 4] - kernels::kFp4Centre;
    y[i] = nvfp4_scale(p[i / 16]) * static_cast<float>(level);
  }
}

void q4_k(const uint8_t* p, float* y) {
  const float d = read_f16(p), dmin = read_f16(p + 2);
  for (int j = 0; j < 8; ++j) {
    const GroupLine line = k_quant_group(p + 4, j);
    const float scale = d * static_cast<float>(line.scale), minimum = dmin * static_cast<float>(line.minimum);
    const uint8_t* q = p + 16 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      y[32 * j + i] = scale * static_cast<float>(value) - minimum;
    }
  }
}
void q5_k(const uint8_t* p, float* y) {
  const float d = read_f16(p), dmin = read_f16(p + 2);
  const uint8_t* high = p + 16;
  for (int j = 0; j < 8; ++j) {
    const GroupLine line = k_quant_group(p + 4, j);
    const float scale = d * static_cast<float>(line.scale), minimum = dmin * static_cast<float>(line.minimum);
    const uint8_t* q = p + 48 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int low = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      y[32 * j + i] = scale * static_cast<float>(low | (((high[i] >> j) & 1) << 4)) - minimum;
    }
  }
}
void q6_k(const uint8_t* p, float* y) {
  const float d = read_f16(p + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    const uint8_t* scales = p + 192 + 8 * half;
    for (int part = 0; part < 4; ++part) {
      for (int i = 0; i < 32; ++i) {
        const int l = (low[(part & 1) * 32 + i] >> (part < 2 ? 0 : 4)) & 15;
        const int q = (l | (((high[i] >> (2 * part)) & 3) << 4)) - 32;
        const int scale = static_cast<int8_t>(scales[2 * part + i / 16]);
        y[128 * half + 32 * part + i] = d * static_cast<float>(scale * q);
      }
    }
  }
}

// 1 sign, 4 exponent and 3 mantissa bits. The exponent has a bias of 7. Only 0x7f and 0xff are NaN.
float f8_e4m3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}
const std::array<float, 256>& f8_e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (size_t i = 0; i < table.size(); ++i) table[i] = f8_e4m3(static_cast<uint8_t>(i));
    return table;
  }();
  return values;
}

void f32(const uint8_t* p, float* y) { *y = read_number<float>(p); }
void f16(const uint8_t* p, float* y) { *y = read_f16(p); }
void bf16(const uint8_t* p, float* y) {
  *y = std::bit_cast<float>(static_cast<uint32_t>(read_number<uint16_t>(p)) << 16);
}
void e4m3(const uint8_t* p, float* y) { *y = f8_e4m3_values()[*p]; }
void e5m2(const uint8_t* p, float* y) { *y = kernels::half_to_float(static_cast<uint16_t>(*p << 8)); }  // half an f16
void i32(const uint8_t* p, float* y) { *y = static_cast<float>(read_number<int32_t>(p)); }
void u8(const uint8_t* p, float* y) { *y = static_cast<float>(*p); }

constexpr TensorTypeInfo kTypes[] = {{TensorType::kF32, "F32", 1, 4, f32, 0},
                                     {TensorType::kF16, "F16", 1, 2, f16, 1},
                                     {TensorType::kBf16, "BF16", 1, 2, bf16, 30},
                                     {TensorType::kQ4_0, "Q4_0", 32, 18, q4_0, 2},
                                     {TensorType::kQ4_1, "Q4_1", 32, 20, q4_1, 3},
                                     {TensorType::kQ5_0, "Q5_0", 32, 22, q5_0, 6},
                                     {TensorType::kQ5_1, "Q5_1", 32, 24, q5_1, 7},
                                     {TensorType::kQ8_0, "Q8_0", 32, 34, q8_0, 8},
                                     {TensorType::kQ2_K, "Q2_K", 256, 84, q2_k, 10},
                                     {TensorType::kQ3_K, "Q3_K", 256, 110, q3_k, 11},
                                     {TensorType::kQ4_K, "Q4_K", 256, 144, q4_k, 12},
                                     {TensorType::kQ5_K, "Q5_K", 256, 176, q5_k, 13},
                                     {TensorType::kQ6_K, "Q6_K", 256, 210, q6_k, 14},
                                     {TensorType::kIq4Nl, "IQ4_NL", 32, 18, iq4_nl, 20},
                                     {TensorType::kIq4Xs, "IQ4_XS", 256, 136, iq4_xs, 23},
                                     {TensorType::kMxfp4, "MXFP4", 32, 17, mxfp4, 39},
                                     {TensorType::kQ8_1, "Q8_1", 32, 36, q8_1, 9},
                                     {TensorType::kNvfp4, "NVFP4", 64, 36, nvfp4, 40},
                                     {TensorType::kIq2Xxs, "IQ2_XXS", 256, 66, expand_iq2_xxs, 16},
                                     {TensorType::kIq2Xs, "IQ2_XS", 256, 74, expand_iq2_xs, 17},
                                     {TensorType::kIq2S, "IQ2_S", 256, 82, expand_iq2_s, 22},
                                     {TensorType::kIq3Xxs, "IQ3_XXS", 256, 98, expand_iq3_xxs, 18},
                                     {TensorType::kIq3S, "IQ3_S", 256, 110, expand_iq3_s, 21},
                                     {TensorType::kIq1S, "IQ1_S", 256, 50, expand_iq1_s, 19},
                                     {TensorType::kIq1M, "IQ1_M", 256, 56, expand_iq1_m, 29},
                                     {TensorType::kTq1_0, "TQ1_0", 256, 54, expand_tq1_0, 34},
                                     {TensorType::kTq2_0, "TQ2_0", 256, 66, expand_tq2_0, 35},
                                     {TensorType::kF8E4m3, "F8_E4M3", 1, 1, e4m3},
                                     {TensorType::kF8E5m2, "F8_E5M2", 1, 1, e5m2},
                                     {TensorType::kI32, "I32", 1, 4, i32},
                                     {TensorType::kU8, "U8", 1, 1, u8},
                                     {TensorType::kInt4, "INT4", 1, 0},
                                     {TensorType::kInt8, "INT8", 1, 0}};

// tensor_type_info() finds a row by its type's value.
static_assert([] {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i].type != static_cast<TensorType>(i)) return false;
  }
  return true;
}());

}  // namespace

std::span<const TensorTypeInfo> tensor_types() { return kTypes; }

const TensorTypeInfo& tensor_type_info(TensorType type) { return kTypes[static_cast<size_t>(type)]; }

int64_t TensorView::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

int64_t TensorView::rows() const { return row_elements() == 0 ? 0 : elements() / row_elements(); }

int64_t TensorView::bytes() const {
  if (column_step != 0) return elements() * tensor_type_info(type).block_bytes;
  const auto n = static_cast<int64_t>(data.size());
  return integers == nullptr || integers->outputs == 0 ? n : n / integers->outputs * rows();
}

void expand_rows(const TensorView& tensor, int64_t first, int64_t count, float* out) {
  if (first < 0 || count < 0 || first > tensor.rows() - count) {
    throw std::out_of_range("tensor \"" + tensor.name + "\": expected rows within [0, " +
                            std::to_string(tensor.rows()) + "), found [" + std::to_string(first) + ", " +
                            std::to_string(first + count) + ")");
  }
  if (tensor.integers != nullptr) {
    for (int64_t row = 0; row < count; ++row)
      tensor.integers->expand(tensor.first_row + first + row, out + row * tensor.row_elements());
    return;
  }
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  if (tensor.column_step != 0) {
    const auto* const data = reinterpret_cast<const uint8_t*>(tensor.data.data());
    for (int64_t row = first; row < first + count; ++row) {
      for (int64_t column = 0; column < tensor.row_elements(); ++column) {
        info.expand(data + (row * tensor.row_step + column * tensor.column_step) * info.block_bytes, out++);
      }
    }
    return;
  }
  const int64_t blocks = tensor.row_elements() / info.block_elements;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.data.data()) + first * blocks * info.block_bytes;
  for (int64_t block = 0; block < count * blocks; ++block) {
    info.expand(bytes + block * info.block_bytes, out + block * info.block_elements);
  }
  if (tensor.scales == nullptr) return;
  const WeightScales& scales = *tensor.scales;
  for (int64_t row = 0; row < count; ++row) {
    const float* factors = scales.values.data() + (tensor.first_row + first + row) / scales.block_rows * scales.columns;
    float* y = out + row * tensor.row_elements();
    for (int64_t i = 0; i < tensor.row_elements(); ++i) y[i] *= factors[i / scales.block_columns];
  }
}

}  // namespace smartkv
