#include "engine/weights/quantized_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "engine/weights/k_quants.h"
#include "engine/weights/packed_integers.h"
#include "engine/weights/weights.h"
#include "kernels/half.h"

namespace smartkv {
namespace {

uint8_t* write_f16(float value, uint8_t* p) {
  const uint16_t bits = kernels::float_to_half(value);
  std::memcpy(p, &bits, sizeof bits);
  return p + sizeof bits;
}

// The readers copy the bytes of a group first, so that the compiler knows that they do not overlap with the integers.
template <size_t Size>
std::array<uint8_t, Size> copy_bytes(const uint8_t* p) {
  std::array<uint8_t, Size> bytes;
  std::memcpy(bytes.data(), p, Size);
  return bytes;
}

// Reads 16 bytes: the low halves are q[0] to q[15], the high halves q[16] to q[31].
void read_nibbles(const uint8_t* p, uint8_t* q) {
  const auto bytes = copy_bytes<16>(p);
  for (size_t i = 0; i < 16; ++i) q[i] = bytes[i] & 15;
  for (size_t i = 0; i < 16; ++i) q[i + 16] = bytes[i] >> 4;
}

// Adds the fifth bits of 32 integers, bit i of the word at `p` for q[i].
void add_fifth_bits(const uint8_t* p, uint8_t* q) {
  for (size_t byte = 0; byte < 4; ++byte) {
    uint64_t all;
    std::memcpy(&all, q + 8 * byte, sizeof all);
    const uint64_t own_bits = p[byte] * uint64_t{0x0101010101010101} & 0x8040201008040201;  // byte i has bit i only
    all |= ((own_bits + 0x7f7f7f7f7f7f7f7f) & 0x8080808080808080) >> 3;
    std::memcpy(q + 8 * byte, &all, sizeof all);
  }
}

// Q4_K and Q5_K: factors, scales and minimums, with Q5_K 32 bytes of fifth bits, then 128 bytes of lower four bits.
kernels::CodedBlock coded_lines(const uint8_t* p, bool fifth_bits) {
  kernels::CodedBlock block;
  block.factors[0] = read_f16(p);
  block.factors[1] = -read_f16(p + 2);
  const auto high = copy_bytes<32>(p + 16);
  for (int g = 0; g < 8; ++g) {
    const GroupLine line = k_quant_group(p + 4, g);
    block.codes[0][g] = static_cast<int8_t>(line.scale);
    block.codes[1][g] = static_cast<int8_t>(line.minimum);
    const auto low = copy_bytes<32>(p + 16 + (fifth_bits ? 32 : 0) + 32 * (g / 2));
    uint8_t* const q = block.q + 32 * g;
    const int shift = g % 2 * 4;
    for (size_t i = 0; i < 32; ++i) q[i] = low[i] >> shift & 15;
    if (!fifth_bits) continue;
    for (size_t i = 0; i < 32; ++i) q[i] |= static_cast<uint8_t>((high[i] >> g & 1) << 4);
  }
  return block;
}

// Q2_K: 16 bytes of scales and minimums of half groups, 4 bits each, 64 bytes of integers, and two f16 factors.
kernels::CodedBlock coded_q2_k(const uint8_t* p) {
  kernels::CodedBlock block;
  block.factors[0] = read_f16(p + 80);
  block.factors[1] = -read_f16(p + 82);
  for (int g = 0; g < 8; ++g) {
    for (int half = 0; half < 2; ++half) block.codes[half][g] = static_cast<int8_t>(p[2 * g + half]);
    for (int i = 0; i < 32; ++i) block.q[32 * g + i] = p[16 + 32 * (g / 4) + i] >> (2 * (g % 4)) & 3;
  }
  return block;
}

// Q3_K: 32 bytes of upper bits, 64 bytes of lower two bits, 12 bytes of scales of half groups, and an f16 factor.
kernels::CodedBlock coded_q3_k(const uint8_t* p) {
  kernels::CodedBlock block;
  block.factors[0] = block.factors[1] = read_f16(p + 108);
  for (int g = 0; g < 8; ++g) {
    for (int half = 0; half < 2; ++half) block.codes[half][g] = static_cast<int8_t>(q3_k_scale(p + 96, 2 * g + half));
    for (int i = 0; i < 32; ++i) {
      const int low = p[32 + 32 * (g / 4) + i] >> (2 * (g % 4)) & 3, high = p[i] >> g & 1;
      block.q[32 * g + i] = static_cast<uint8_t>(low | high << 2);
    }
  }
  return block;
}

// IQ4_XS: an f16 factor, scales of groups of 6 bits, and levels of 4 bits.
kernels::CodedBlock coded_iq4_xs(const uint8_t* p) {
  kernels::CodedBlock block{};
  block.factors[0] = read_f16(p);
  for (int g = 0; g < 8; ++g) {
    block.codes[0][g] = static_cast<int8_t>(iq4_xs_scale(p, g));
    read_nibbles(p + 8 + 16 * g, block.q + 32 * g);
  }
  return block;
}

// Q6_K: 128 bytes of lower four bits, 64 bytes of upper two bits, 16 scales of half groups, and an f16 factor.
kernels::CodedBlock coded_q6_k(const uint8_t* p) {
  kernels::CodedBlock block;
  block.factors[0] = block.factors[1] = read_f16(p + 208);
  for (int g = 0; g < 8; ++g) {
    const auto low = copy_bytes<32>(p + 64 * (g / 4) + 32 * (g % 2)), high = copy_bytes<32>(p + 128 + 32 * (g / 4));
    for (int half = 0; half < 2; ++half) block.codes[half][g] = static_cast<int8_t>(p[192 + 2 * g + half]);
    const int four = g % 4 / 2 * 4, two = g % 4 * 2;
    for (size_t i = 0; i < 32; ++i) {
      block.q[32 * g + static_cast<int>(i)] = static_cast<uint8_t>((low[i] >> four & 15) | (high[i] >> two & 3) << 4);
    }
  }
  return block;
}

const uint8_t* row_bytes(const TensorView& tensor, int64_t row) {
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  return reinterpret_cast<const uint8_t*>(tensor.data.data()) +
         row * (tensor.row_elements() / info.block_elements) * info.block_bytes;
}

}  // namespace

void QuantizedRow::resize(int64_t elements) {
  q.resize(static_cast<size_t>(elements));
  scale.resize(static_cast<size_t>(elements / kRowGroup));
  minimum.resize(static_cast<size_t>(elements / kRowGroup));
}

bool is_float(const TensorView& tensor) {
  return tensor.type == TensorType::kF32 || tensor.type == TensorType::kF16 || tensor.type == TensorType::kBf16;
}

std::optional<MatrixFormat> kept_format(const TensorView& tensor) {
  using kernels::Minimums;
  using kernels::WeightType;
  if (tensor.integers != nullptr) {
    const PackedIntegers& integers = *tensor.integers;
    if (integers.layout == PackedIntegers::Layout::kMxfp4) return {{WeightType::kMxfp4, Minimums::kCentred}};
    if (!integers.in_groups) return std::nullopt;
    const WeightType type = integers.bits == 4 ? WeightType::kInt4 : WeightType::kInt8;
    if (integers.symmetric) return {{type, Minimums::kCentred}};
    return {{type, integers.in_pairs && integers.bits == 4 ? Minimums::kShared : Minimums::kStored}};
  }
  switch (tensor.type) {
    case TensorType::kQ4_0: return {{WeightType::kInt4, Minimums::kCentred}};
    case TensorType::kQ4_1: return {{WeightType::kInt4, Minimums::kStored}};
    case TensorType::kQ5_0: return {{WeightType::kInt5, Minimums::kCentred}};
    case TensorType::kQ5_1: return {{WeightType::kInt5, Minimums::kStored}};
    case TensorType::kQ8_0:
    case TensorType::kQ8_1: return {{WeightType::kInt8, Minimums::kCentred}};
    case TensorType::kQ2_K: return {{WeightType::kInt2, Minimums::kCoded}};
    case TensorType::kQ3_K: return {{WeightType::kInt3, Minimums::kCoded}};
    case TensorType::kQ4_K: return {{WeightType::kInt4, Minimums::kCoded}};
    case TensorType::kQ5_K: return {{WeightType::kInt5, Minimums::kCoded}};
    case TensorType::kQ6_K: return {{WeightType::kInt6, Minimums::kCoded}};
    case TensorType::kIq4Nl: return {{WeightType::kIq4, Minimums::kCentred}};
    case TensorType::kIq4Xs: return {{WeightType::kIq4, Minimums::kCoded}};
    case TensorType::kMxfp4: return {{WeightType::kMxfp4, Minimums::kCentred}};
    case TensorType::kNvfp4: return {{WeightType::kNvfp4, Minimums::kCentred}};
    default: return std::nullopt;
  }
}

namespace {

// Throws std::invalid_argument unless the tensor has the row and keeps its integers in coded or other groups.
void check_row(const char* function, const TensorView& tensor, int64_t row, bool coded) {
  const std::optional<MatrixFormat> format = kept_format(tensor);
  if (format && format->coded() == coded && row >= 0 && row < tensor.rows()) return;
  throw std::invalid_argument(std::string(function) + ": tensor \"" + tensor.name + "\", row " + std::to_string(row));
}

}  // namespace

void read_coded_row(const TensorView& tensor, int64_t row, std::vector<kernels::CodedBlock>& out) {
  check_row("read_coded_row", tensor, row, true);
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  const uint8_t* p = row_bytes(tensor, row);
  out.resize(static_cast<size_t>(tensor.row_elements() / info.block_elements));
  for (kernels::CodedBlock& block : out) {
    switch (tensor.type) {
      case TensorType::kQ2_K: block = coded_q2_k(p); break;
      case TensorType::kQ3_K: block = coded_q3_k(p); break;
      case TensorType::kQ6_K: block = coded_q6_k(p); break;
      case TensorType::kIq4Xs: block = coded_iq4_xs(p); break;
      default: block = coded_lines(p, tensor.type == TensorType::kQ5_K);
    }
    p += info.block_bytes;
  }
}

void read_quantized_row(const TensorView& tensor, int64_t row, QuantizedRow& out) {
  check_row("read_quantized_row", tensor, row, false);
  if (tensor.integers != nullptr) return tensor.integers->read(tensor.first_row + row, out);
  const int64_t groups = tensor.row_elements() / kRowGroup;
  const int64_t bytes = tensor_type_info(tensor.type).block_bytes;
  const uint8_t* p = row_bytes(tensor, row);
  out.resize(tensor.row_elements());
  uint8_t* q = out.q.data();
  if (tensor.type == TensorType::kNvfp4) {  // Blocks of 64 weights: 4 scales, then 4 times 8 bytes of two weights.
    for (int64_t g = 0; g < groups; ++g, q += kRowGroup) {
      const uint8_t* const block = p + g / 2 * bytes;
      out.scale[g] = nvfp4_scale(block[g % 2 * 2]);
      out.minimum[g] = nvfp4_scale(block[g % 2 * 2 + 1]);
      for (int i = 0; i < kRowGroup; ++i) {
        const uint8_t both = block[4 + g % 2 * 16 + i / 16 * 8 + i % 8];
        q[i] = i % 16 < 8 ? both & 15 : both >> 4;
      }
    }
    return;
  }
  for (int64_t g = 0; g < groups; ++g, p += bytes, q += kRowGroup) {
    float scale = tensor.type == TensorType::kMxfp4 ? mxfp4_scale(p[0]) : read_f16(p), minimum = 0;
    switch (tensor.type) {
      case TensorType::kQ4_0:
        minimum = -8.0f * scale;
        read_nibbles(p + 2, q);
        break;
      case TensorType::kQ4_1:
        minimum = read_f16(p + 2);
        read_nibbles(p + 4, q);
        break;
      case TensorType::kQ5_0:
        minimum = -16.0f * scale;
        read_nibbles(p + 6, q);
        add_fifth_bits(p + 2, q);
        break;
      case TensorType::kQ5_1:
        minimum = read_f16(p + 2);
        read_nibbles(p + 8, q);
        add_fifth_bits(p + 4, q);
        break;
      case TensorType::kIq4Nl:
        minimum = -static_cast<float>(kernels::kIq4Centre) * scale;
        read_nibbles(p + 2, q);
        break;
      case TensorType::kMxfp4:
        minimum = -static_cast<float>(kernels::kFp4Centre) * scale;
        read_nibbles(p + 1, q);
        break;
      default: {  // Q8_0 and Q8_1, which also has the sum of its weights
        minimum = -128.0f * scale;
        const auto integers = copy_bytes<kRowGroup>(p + bytes - kRowGroup);
        for (size_t i = 0; i < kRowGroup; ++i) q[i] = integers[i] ^ 0x80;  // two's complement + 128
      }
    }
    out.scale[g] = scale;
    out.minimum[g] = minimum;
  }
}

std::byte* write_quantized_row(const std::string& tensor, TensorType type, const QuantizedRow& row, std::byte* out) {
  if (type != TensorType::kQ4_1 && type != TensorType::kQ8_0) {
    throw std::invalid_argument("write_quantized_row: expected Q4_1 or Q8_0, found " +
                                std::string(tensor_type_info(type).name));
  }
  auto* p = reinterpret_cast<uint8_t*>(out);
  const uint8_t* q = row.q.data();
  for (size_t g = 0; g < row.scale.size(); ++g, q += kRowGroup) {
    p = write_f16(row.scale[g], p);
    if (type == TensorType::kQ4_1) {
      p = write_f16(row.minimum[g], p);
      for (int i = 0; i < kRowGroup / 2; ++i) *p++ = static_cast<uint8_t>(q[i] | q[i + kRowGroup / 2] << 4);
      continue;
    }
    if (row.minimum[g] != -128.0f * row.scale[g]) {
      throw ModelError("tensor \"" + tensor +
                       "\": 8-bit integers: expected all zero points to be 128, as Q8_0 needs, found " +
                       std::to_string(-row.minimum[g] / row.scale[g]));
    }
    for (int i = 0; i < kRowGroup; ++i) *p++ = static_cast<uint8_t>(q[i] ^ 0x80);
  }
  return reinterpret_cast<std::byte*>(p);
}

}  // namespace smartkv
