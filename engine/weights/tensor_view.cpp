#include "engine/weights/tensor_view.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "engine/weights/k_quants.h"
#include "engine/weights/packed_integers.h"
#include "kernels/half.h"

namespace smartkv {
namespace {

template <typename T>
T read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
float read_f16(const uint8_t* p) { return kernels::half_to_float(read<uint16_t>(p)); }

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
  const uint32_t high = read<uint32_t>(p + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(((p[6 + i] & 15) | fifth(high, i)) - 16);
    y[i + 16] = d * static_cast<float>(((p[6 + i] >> 4) | fifth(high, i + 16)) - 16);
  }
}
void q5_1(const uint8_t* p, float* y) {
  const float d = read_f16(p), m = read_f16(p + 2);
  const uint32_t high = read<uint32_t>(p + 4);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((p[8 + i] & 15) | fifth(high, i)) + m;
    y[i + 16] = d * static_cast<float>((p[8 + i] >> 4) | fifth(high, i + 16)) + m;
  }
}
void q8_0(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
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
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int scale = (low | (((scales[8 + group % 4] >> (2 * (group / 4))) & 3) << 4)) - 32;
    const uint8_t* q = p + 32 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2, bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int value = ((q[i] >> shift) & 3) - (((high[group % 2 * 16 + i] >> bit) & 1) != 0 ? 0 : 4);
      y[16 * group + i] = d * static_cast<float>(scale) * static_cast<float>(value);
    }
  }
}

// Expands 16 bytes through a table of levels: first the low halves, then the high halves.
void look_up(const int8_t* table, float d, const uint8_t* q, float* y) {
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(table[q[i] & 15]);
    y[i + 16] = d * static_cast<float>(table[q[i] >> 4]);
  }
}
// The levels of the IQ4 types, which are denser around zero.
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
void iq4_nl(const uint8_t* p, float* y) { look_up(kIq4Levels, read_f16(p), p + 2, y); }
void iq4_xs(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  const uint16_t high = read<uint16_t>(p + 2);
  for (int j = 0; j < 8; ++j) {
    const int scale = (((p[4 + j / 2] >> (4 * (j % 2))) & 15) | (((high >> (2 * j)) & 3) << 4)) - 32;
    look_up(kIq4Levels, d * static_cast<float>(scale), p + 8 + 16 * j, y + 32 * j);
  }
}
// OCP Microscaling: 32 numbers with 1 sign, 2 exponent and 1 mantissa bits share a power of two. The table has them
// doubled.
constexpr int8_t kFp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
void mxfp4(const uint8_t* p, float* y) { look_up(kFp4Levels, std::ldexp(1.0f, p[0] - 128), p + 1, y); }

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

using BlockFunction = void (*)(const uint8_t*, float*);

BlockFunction block_function(TensorType type) {
  switch (type) {
    case TensorType::kF32: return [](const uint8_t* p, float* y) { *y = read<float>(p); };
    case TensorType::kF16: return [](const uint8_t* p, float* y) { *y = read_f16(p); };
    case TensorType::kBf16:
      return [](const uint8_t* p, float* y) { *y = std::bit_cast<float>(static_cast<uint32_t>(read<uint16_t>(p)) << 16); };
    case TensorType::kQ4_0: return q4_0;
    case TensorType::kQ4_1: return q4_1;
    case TensorType::kQ5_0: return q5_0;
    case TensorType::kQ5_1: return q5_1;
    case TensorType::kQ8_0: return q8_0;
    case TensorType::kQ2_K: return q2_k;
    case TensorType::kQ3_K: return q3_k;
    case TensorType::kQ4_K: return q4_k;
    case TensorType::kQ5_K: return q5_k;
    case TensorType::kQ6_K: return q6_k;
    case TensorType::kIq4Nl: return iq4_nl;
    case TensorType::kIq4Xs: return iq4_xs;
    case TensorType::kMxfp4: return mxfp4;
    case TensorType::kF8E4m3: return [](const uint8_t* p, float* y) { *y = f8_e4m3_values()[*p]; };
    case TensorType::kF8E5m2:  // The upper byte of an f16.
      return [](const uint8_t* p, float* y) { *y = kernels::half_to_float(static_cast<uint16_t>(*p << 8)); };
    case TensorType::kI32: return [](const uint8_t* p, float* y) { *y = static_cast<float>(read<int32_t>(p)); };
    case TensorType::kInt4:
    case TensorType::kInt8: break;
  }
  throw std::logic_error("expand_rows: unknown tensor type");
}

}  // namespace

const TensorTypeInfo& tensor_type_info(TensorType type) {
  static constexpr TensorTypeInfo kInfo[] = {
      {"F32", 1, 4},    {"F16", 1, 2},   {"BF16", 1, 2},    {"Q4_0", 32, 18},   {"Q4_1", 32, 20},  {"Q5_0", 32, 22},
      {"Q5_1", 32, 24}, {"Q8_0", 32, 34}, {"Q2_K", 256, 84},  {"Q3_K", 256, 110}, {"Q4_K", 256, 144}, {"Q5_K", 256, 176},
      {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18}, {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},
      {"F8_E4M3", 1, 1},  {"F8_E5M2", 1, 1}, {"I32", 1, 4},     {"INT4", 1, 0},     {"INT8", 1, 0}};
  return kInfo[static_cast<size_t>(type)];
}

int64_t TensorView::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

int64_t TensorView::rows() const { return row_elements() == 0 ? 0 : elements() / row_elements(); }

int64_t TensorView::bytes() const {
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
    for (int64_t row = 0; row < count; ++row) tensor.integers->expand(tensor.first_row + first + row, out + row * tensor.row_elements());
    return;
  }
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  const int64_t blocks = tensor.row_elements() / info.block_elements;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.data.data()) + first * blocks * info.block_bytes;
  const BlockFunction expand = block_function(tensor.type);
  for (int64_t block = 0; block < count * blocks; ++block) {
    expand(bytes + block * info.block_bytes, out + block * info.block_elements);
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
