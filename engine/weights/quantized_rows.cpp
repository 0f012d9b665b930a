#include "engine/weights/quantized_rows.h"

#include <algorithm>
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

float rounded_to_half(float value) { return kernels::half_to_float(kernels::float_to_half(value)); }

// Reads 16 bytes: the low halves are q[0] to q[15], the high halves q[16] to q[31].
void read_nibbles(const uint8_t* p, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = p[i] & 15;
    q[i + 16] = p[i] >> 4;
  }
}

kernels::CodedBlock coded_q4_k(const uint8_t* p) {
  kernels::CodedBlock block;
  block.factors[0] = read_f16(p);
  block.factors[1] = -read_f16(p + 2);
  for (int g = 0; g < 8; ++g) {
    const GroupLine line = k_quant_group(p + 4, g);
    block.codes[0][g] = static_cast<int8_t>(line.scale);
    block.codes[1][g] = static_cast<int8_t>(line.minimum);
    const uint8_t* q = p + 16 + 32 * (g / 2);
    for (int i = 0; i < 32; ++i) block.q[32 * g + i] = static_cast<uint8_t>(g % 2 == 0 ? q[i] & 15 : q[i] >> 4);
  }
  return block;
}

// Reads a block of Q4_K into groups g to g + 7 of the row.
void read_q4_k(const uint8_t* p, size_t g, QuantizedRow& out) {
  const kernels::CodedBlock block = coded_q4_k(p);
  std::copy(std::begin(block.q), std::end(block.q), out.q.data() + g * kRowGroup);
  for (size_t j = 0; j < 8; ++j) {
    out.scale[g + j] = rounded_to_half(block.factors[0] * static_cast<float>(block.codes[0][j]));
    out.minimum[g + j] = rounded_to_half(block.factors[1] * static_cast<float>(block.codes[1][j]));
  }
}

// Q6_K: 128 bytes of lower four bits, 64 bytes of upper two bits, 16 scales of half groups, and an f16 factor.
kernels::CodedBlock coded_q6_k(const uint8_t* p) {
  kernels::CodedBlock block;
  block.factors[0] = block.factors[1] = read_f16(p + 208);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* low = p + 64 * (g / 4) + 32 * (g % 2);
    const uint8_t* high = p + 128 + 32 * (g / 4);
    for (int half = 0; half < 2; ++half) block.codes[half][g] = static_cast<int8_t>(p[192 + 2 * g + half]);
    for (int i = 0; i < 32; ++i) {
      const int four = (low[i] >> (g % 4 < 2 ? 0 : 4)) & 15, two = (high[i] >> (2 * (g % 4))) & 3;
      block.q[32 * g + i] = static_cast<uint8_t>(four | two << 4);
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

int group_bits(const TensorView& tensor) {
  if (tensor.integers != nullptr) return tensor.integers->in_order ? static_cast<int>(tensor.integers->bits) : 0;
  if (tensor.type == TensorType::kQ4_0 || tensor.type == TensorType::kQ4_1 || tensor.type == TensorType::kQ4_K)
    return 4;
  return tensor.type == TensorType::kQ8_0 ? 8 : 0;
}

bool has_centred_groups(const TensorView& tensor, int bits) {
  if (tensor.integers != nullptr) return tensor.integers->symmetric || tensor.integers->bits < bits;
  return tensor.type == TensorType::kQ4_0 || tensor.type == TensorType::kQ8_0;
}

int coded_bits(const TensorView& tensor) {
  if (tensor.integers != nullptr) return 0;
  return tensor.type == TensorType::kQ4_K ? 4 : tensor.type == TensorType::kQ6_K ? 6 : 0;
}

void read_coded_row(const TensorView& tensor, int64_t row, std::vector<kernels::CodedBlock>& out) {
  if (coded_bits(tensor) == 0 || row < 0 || row >= tensor.rows()) {
    throw std::invalid_argument("read_coded_row: tensor \"" + tensor.name + "\", row " + std::to_string(row));
  }
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  const uint8_t* p = row_bytes(tensor, row);
  out.resize(static_cast<size_t>(tensor.row_elements() / info.block_elements));
  for (kernels::CodedBlock& block : out) {
    block = tensor.type == TensorType::kQ4_K ? coded_q4_k(p) : coded_q6_k(p);
    p += info.block_bytes;
  }
}

void read_quantized_row(const TensorView& tensor, int64_t row, QuantizedRow& out) {
  if (group_bits(tensor) == 0 || row < 0 || row >= tensor.rows()) {
    throw std::invalid_argument("read_quantized_row: tensor \"" + tensor.name + "\", row " + std::to_string(row));
  }
  if (tensor.integers != nullptr) return tensor.integers->read(tensor.first_row + row, out);
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  const int64_t blocks = tensor.row_elements() / info.block_elements, groups = tensor.row_elements() / kRowGroup;
  const int64_t bytes = info.block_bytes;
  const uint8_t* p = row_bytes(tensor, row);
  out.resize(tensor.row_elements());
  if (tensor.type == TensorType::kQ4_K) {
    for (int64_t block = 0; block < blocks; ++block) read_q4_k(p + block * bytes, static_cast<size_t>(8 * block), out);
    return;
  }
  uint8_t* q = out.q.data();
  for (int64_t g = 0; g < groups; ++g, p += bytes, q += kRowGroup) {
    out.scale[g] = read_f16(p);
    if (tensor.type == TensorType::kQ4_0) {
      out.minimum[g] = -8.0f * out.scale[g];
      read_nibbles(p + 2, q);
    } else if (tensor.type == TensorType::kQ4_1) {
      out.minimum[g] = read_f16(p + 2);
      read_nibbles(p + 4, q);
    } else {
      out.minimum[g] = -128.0f * out.scale[g];
      for (int i = 0; i < kRowGroup; ++i) q[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80);  // two's complement + 128
    }
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
