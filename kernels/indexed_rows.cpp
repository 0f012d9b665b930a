#include "kernels/indexed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"

namespace smartkv::kernels {
namespace {

// Writes `n` values in the type of dense pages. Returns a pointer past the last one.
std::byte* put(KvType type, const float* values, int64_t n, std::byte* to) {
  if (type == KvType::kF32) {
    std::memcpy(to, values, static_cast<size_t>(n) * sizeof(float));
  } else {
    std::transform(values, values + n, reinterpret_cast<uint16_t*>(to), to_bf16);
  }
  return to + n * element_bytes(type);
}

// Rounds the values to the type in which they are stored.
void round_to(KvType type, std::vector<float>* values) {
  if (type == KvType::kF32) return;
  for (float& value : *values) value = from_bf16(to_bf16(value));
}

// Encodes x - mean. Returns the step. If x equals mean everywhere, the step is 0 and the codes do not matter.
float encode(const float* x, const float* mean, int64_t n, int bits, uint8_t* codes) {
  const float centre = static_cast<float>((1 << bits) - 1) / 2;
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i] - mean[i]));
  const float step = most / centre, inverse = most > 0 ? centre / most : 0;
  const auto code = [&](int64_t i) {
    const float place = (x[i] - mean[i]) * inverse + centre;  // NaN becomes 0
    return static_cast<uint8_t>(std::lround(std::clamp(place > 0 ? place : 0.0f, 0.0f, 2 * centre)));
  };
  if (bits == 8) {
    for (int64_t i = 0; i < n; ++i) codes[i] = code(i);
  } else {
    for (int64_t i = 0; i < n; i += 2) codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
  }
  return step;
}

}  // namespace

void encode_rows(KvType type, int64_t head_dim, int bits, const float* k, const float* v, void* to) {
  const auto dim = static_cast<size_t>(head_dim);
  std::vector<float> means(2 * dim);
  for (int64_t t = 0; t < kPageTokens; ++t) {
    for (size_t d = 0; d < dim; ++d) {
      means[d] += k[static_cast<size_t>(t) * dim + d] / kPageTokens;
      means[dim + d] += v[static_cast<size_t>(t) * dim + d] / kPageTokens;
    }
  }
  round_to(type, &means);
  auto* row = static_cast<std::byte*>(to);
  for (int64_t t = 0; t < kPageTokens; ++t, k += dim, v += dim) {
    if (bits == 0) {
      row = put(type, v, head_dim, put(type, k, head_dim, row));
      continue;
    }
    auto* codes = reinterpret_cast<uint8_t*>(row);
    const int64_t bytes = head_dim * bits / 8;
    const float steps[] = {encode(k, means.data(), head_dim, bits, codes),
                           encode(v, means.data() + dim, head_dim, bits, codes + bytes)};
    std::memcpy(codes + 2 * bytes, steps, sizeof steps);
    row += row_bytes(type, head_dim, bits);
  }
  put(type, means.data(), 2 * head_dim, row);
}

}  // namespace smartkv::kernels
