#include "engine/weights/quantized_rows.h"

#include <cstring>
#include <stdexcept>

#include "kernels/half.h"

namespace smartkv {
namespace {

constexpr int64_t kGroup = 32;

float read_f16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return kernels::half_to_float(bits);
}

void read_nibbles(const uint8_t* p, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = p[i] & 15;
    q[i + 16] = p[i] >> 4;
  }
}

}  // namespace

int group_bits(TensorType type) {
  if (type == TensorType::kQ4_0 || type == TensorType::kQ4_1) return 4;
  return type == TensorType::kQ8_0 ? 8 : 0;
}

void read_quantized_row(const TensorView& tensor, int64_t row, uint8_t* q, float* scale, float* minimum) {
  if (group_bits(tensor.type) == 0 || row < 0 || row >= tensor.rows()) {
    throw std::invalid_argument("read_quantized_row: tensor \"" + tensor.name + "\", row " + std::to_string(row));
  }
  const int64_t groups = tensor.row_elements() / kGroup, bytes = tensor_type_info(tensor.type).block_bytes;
  const auto* p = reinterpret_cast<const uint8_t*>(tensor.data.data()) + row * groups * bytes;
  for (int64_t g = 0; g < groups; ++g, p += bytes, q += kGroup) {
    scale[g] = read_f16(p);
    if (tensor.type == TensorType::kQ4_0) {
      minimum[g] = -8.0f * scale[g];
      read_nibbles(p + 2, q);
    } else if (tensor.type == TensorType::kQ4_1) {
      minimum[g] = read_f16(p + 2);
      read_nibbles(p + 4, q);
    } else {
      minimum[g] = -128.0f * scale[g];
      for (int i = 0; i < kGroup; ++i) q[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80);  // two's complement + 128
    }
  }
}

}  // namespace smartkv
