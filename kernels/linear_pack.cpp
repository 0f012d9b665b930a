#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/half.h"
#include "kernels/linear.h"
#include "kernels/linear_format.h"
#include "kernels/packed_size.h"

namespace smartkv::kernels {
namespace {

// Returns the bits of an integer weight, 0 for floats.
int integer_bits(WeightType type) {
  switch (type) {
    case WeightType::kInt8: return 8;
    case WeightType::kInt6: return 6;
    case WeightType::kInt4: return 4;
    default: return 0;
  }
}

int64_t lane_group_bytes(WeightType type, Minimums minimums, int64_t k) {
  if (type == WeightType::kF32) return k * kLanes * 4;
  if (type == WeightType::kBf16) return k * kLanes * 2;
  const int bits = integer_bits(type);
  if (minimums == Minimums::kCoded) return k / kBlockInputs * block_bytes(bits);
  const int64_t groups = k / kGroupSize;
  const int64_t lines = minimums == Minimums::kStored ? groups : (groups + 1) / kPairGroups;
  return groups * integer_bytes(bits) + lines * kLineBytes;
}

int64_t k_multiple(WeightType type, Minimums minimums) {
  if (integer_bits(type) > 0) return minimums == Minimums::kCoded ? kBlockInputs : kGroupSize;
  return type == WeightType::kF32 ? 1 : 2;
}

bool has(WeightType type, Minimums minimums) {
  if (type == WeightType::kInt6) return minimums == Minimums::kCoded;
  if (type == WeightType::kInt4) return true;
  return minimums == Minimums::kStored || (type == WeightType::kInt8 && minimums == Minimums::kCentred);
}

int64_t lane_group_bytes(const PackedMatrix& m) { return lane_group_bytes(m.type, m.minimums, m.in_features); }

// A group of 32 weights of one row. A weight is scale * q + minimum.
struct IntegerGroup {
  uint8_t q[kGroupSize];
  float scale = 0;
  float minimum = 0;
};

// Where a group of an integer matrix lies, and how many bytes of integers each lane has in it.
struct GroupPlace {
  int bits;
  GroupOffsets at;
  int64_t bytes_per_lane;
};

GroupPlace group_place(const PackedMatrix& matrix, int64_t lanes, int64_t k_group) {
  const int bits = integer_bits(matrix.type);
  const int64_t begin = lanes * lane_group_bytes(matrix);
  const GroupOffsets at =
      group_offsets(bits, matrix.minimums == Minimums::kCentred, k_group, matrix.in_features / kGroupSize);
  return {bits, {begin + at.integers, begin + at.scales}, kGroupSize * bits / 8};
}

// Shifts the levels so that the minimum becomes that of centred integers. The weights stay the same. Throws
// std::invalid_argument if a level would leave its range.
void centre_levels(int bits, IntegerGroup& group) {
  const auto middle = static_cast<float>(centre(bits));
  const float shift = group.scale == 0 ? 0 : group.minimum / group.scale + middle;
  const bool fits = group.scale != 0 || group.minimum == 0;
  if (fits && shift == 0) return;
  for (uint8_t& q : group.q) {
    const float level = static_cast<float>(q) + shift;
    if (!fits || level != std::nearbyint(level) || level < 0 || level >= 2 * middle) {
      throw std::invalid_argument("packed matrix of centered integers: expected a minimum of -" +
                                  std::to_string(centre(bits)) + " times the scale, found scale " +
                                  std::to_string(group.scale) + " and minimum " + std::to_string(group.minimum));
    }
    q = static_cast<uint8_t>(level);
  }
}

void check_integers(const PackedMatrix& matrix, bool coded) {
  if (integer_bits(matrix.type) > 0 && coded == (matrix.minimums == Minimums::kCoded)) return;
  throw std::invalid_argument(
      std::string("packed matrix: expected ") + (coded ? "coded groups" : "uncoded groups of integers") + ", found " +
      std::string(name(matrix.type)) + (matrix.minimums == Minimums::kCoded ? " with coded groups" : ""));
}

void check_half(float value) {
  if (!(std::fabs(value) <= 65504.0f)) {
    throw std::invalid_argument("packed matrix: expected scale and minimum within the range of f16, found " +
                                std::to_string(value));
  }
}

void store_group(PackedMatrix& matrix, int64_t lanes, int64_t k_group, int64_t lane, IntegerGroup group) {
  check_half(group.scale);
  check_half(group.minimum);
  const GroupPlace place = group_place(matrix, lanes, k_group);
  const bool centred = matrix.minimums == Minimums::kCentred;
  if (centred) centre_levels(place.bits, group);
  std::byte* base = matrix.data.data() + place.at.integers;
  uint8_t bytes[kGroupSize];
  if (place.bits == 4) {
    for (int64_t k = 0; k < kGroupSize / 2; ++k)
      bytes[k] = static_cast<uint8_t>(group.q[k] | group.q[k + kGroupSize / 2] << 4);
  } else {
    std::copy_n(group.q, kGroupSize, bytes);
  }
  for (int64_t k = 0; k < place.bytes_per_lane; k += 4) std::memcpy(base + byte_offset(lane, k), bytes + k, 4);
  auto* halves = reinterpret_cast<uint16_t*>(matrix.data.data() + place.at.scales);
  halves[lane] = float_to_half(group.scale);
  if (!centred) halves[kLanes + lane] = float_to_half(group.minimum);
}

float rounded_to_half(float value) { return half_to_float(float_to_half(value)); }

IntegerGroup quantize_int8(const float* w) {
  float largest = 0;
  for (int64_t k = 0; k < kGroupSize; ++k) largest = std::max(largest, std::fabs(w[k]));
  IntegerGroup group;
  group.scale = rounded_to_half(largest / 127);
  group.minimum = -128 * group.scale;
  const float inverse = group.scale > 0 ? 1 / group.scale : 0;
  for (int64_t k = 0; k < kGroupSize; ++k) {
    group.q[k] = static_cast<uint8_t>(std::clamp(std::nearbyint(w[k] * inverse), -128.0f, 127.0f) + 128);
  }
  return group;
}

// Packing int4 works on the same group of all 16 lanes at once.
using Lanes = std::array<float, kLanes>;
using LaneWeights = std::array<Lanes, kGroupSize>;  // [k][lane]

struct LaneLine {
  Lanes scale, minimum;  // Exactly representable in f16.
};

Lanes inverses(const LaneLine& line) {
  Lanes inverse;
  for (size_t lane = 0; lane < kLanes; ++lane) inverse[lane] = line.scale[lane] > 0 ? 1 / line.scale[lane] : 0.0f;
  return inverse;
}

uint8_t level_of(float w, float minimum, float inverse) {
  const auto level = static_cast<int32_t>((w - minimum) * inverse + 0.5f);
  return static_cast<uint8_t>(std::clamp(level, 0, 15));
}

// Fits each line to the present levels. A lane with equal levels keeps its line.
void fit_lines(const Int4Fit& fit, const Lanes& sum_w, LaneLine& line) {
  constexpr float kCount = kGroupSize;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const float determinant = kCount * fit.sum_qq[lane] - fit.sum_q[lane] * fit.sum_q[lane];
    if (determinant <= 0) continue;
    const float scale = (kCount * fit.sum_qw[lane] - fit.sum_q[lane] * sum_w[lane]) / determinant;
    line.scale[lane] = rounded_to_half(scale);
    line.minimum[lane] = rounded_to_half((sum_w[lane] - line.scale[lane] * fit.sum_q[lane]) / kCount);
  }
}

LaneLine quantize_int4(const LaneWeights& w) {
  const auto measure = cpu_kernels().linear->measure_int4;
  Lanes low = w[0], high = w[0], sum_w{};
  for (size_t k = 0; k < kGroupSize; ++k) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      low[lane] = std::min(low[lane], w[k][lane]);
      high[lane] = std::max(high[lane], w[k][lane]);
      sum_w[lane] += w[k][lane];
    }
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    check_half(low[lane]);
    check_half(high[lane]);
    check_half(sum_w[lane] / kGroupSize);  // NaN, which does not show in the extremes.
  }
  LaneLine best{};
  Lanes best_error;
  best_error.fill(std::numeric_limits<float>::infinity());
  // A narrower span clips the outermost weights but fits the others better. Try a few spans, and refine each by
  // alternating between least squares and assignment.
  for (const float span : {1.0f, 0.9f, 0.8f}) {
    LaneLine line;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float scale = (high[lane] - low[lane]) * span / 15;
      line.scale[lane] = rounded_to_half(scale);
      line.minimum[lane] = rounded_to_half((low[lane] + high[lane]) / 2 - 7.5f * scale);
    }
    constexpr int kIterations = 4;
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      Int4Fit fit;
      measure(w[0].data(), line.scale.data(), line.minimum.data(), inverses(line).data(), fit);
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const bool better = fit.error[lane] < best_error[lane];
        best_error[lane] = better ? fit.error[lane] : best_error[lane];
        best.scale[lane] = better ? line.scale[lane] : best.scale[lane];
        best.minimum[lane] = better ? line.minimum[lane] : best.minimum[lane];
      }
      fit_lines(fit, sum_w, line);
    }
  }
  return best;
}

void pack_int4(PackedMatrix& matrix, int64_t group, const float* rows) {
  for (int64_t k_group = 0; k_group < matrix.in_features / kGroupSize; ++k_group) {
    LaneWeights w;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float* row = rows + lane * matrix.in_features + k_group * kGroupSize;
      for (int64_t k = 0; k < kGroupSize; ++k) w[static_cast<size_t>(k)][static_cast<size_t>(lane)] = row[k];
    }
    const LaneLine line = quantize_int4(w);
    const Lanes inverse = inverses(line);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      IntegerGroup quantized{{}, line.scale[lane], line.minimum[lane]};
      for (size_t k = 0; k < kGroupSize; ++k) {
        quantized.q[k] = level_of(w[k][lane], quantized.minimum, inverse[lane]);
      }
      store_group(matrix, group, k_group, static_cast<int64_t>(lane), quantized);
    }
  }
}

}  // namespace

std::string_view name(WeightType type) {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "int8", "int4", "int6"};  // in the order of WeightType
  return kNames[static_cast<size_t>(type)];
}

int64_t packed_bytes(WeightType type, int64_t out_features, int64_t in_features, Minimums minimums) {
  return (out_features + kLanes - 1) / kLanes * lane_group_bytes(type, minimums, in_features);
}

PackedMatrix make_packed(WeightType type, int64_t out_features, int64_t in_features, Minimums minimums) {
  if (!has(type, minimums)) {
    throw std::invalid_argument("packed matrix of " + std::string(name(type)) + ": minimums of kind " +
                                std::to_string(static_cast<int>(minimums)) + " are not supported");
  }
  if (out_features < 1 || in_features < 1 || in_features % k_multiple(type, minimums) != 0) {
    throw std::invalid_argument("packed matrix of " + std::string(name(type)) + ": expected [N, a multiple of " +
                                std::to_string(k_multiple(type, minimums)) + "], found [" +
                                std::to_string(out_features) + ", " + std::to_string(in_features) + "]");
  }
  return {type, minimums, out_features, in_features,
          AlignedBuffer(static_cast<size_t>(packed_bytes(type, out_features, in_features, minimums)))};
}

void pack_lanes(PackedMatrix& matrix, int64_t group, const float* rows) {
  const int64_t k_total = matrix.in_features;
  std::byte* out = matrix.data.data() + group * lane_group_bytes(matrix);
  switch (matrix.type) {
    case WeightType::kF32:
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float* row = rows + lane * k_total;
        for (int64_t k = 0; k < k_total; ++k) reinterpret_cast<float*>(out)[k * kLanes + lane] = row[k];
      }
      return;
    case WeightType::kBf16:
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        for (int64_t k = 0; k < k_total; ++k) {
          reinterpret_cast<uint16_t*>(out)[(k / 2 * kLanes + lane) * 2 + k % 2] = to_bf16(rows[lane * k_total + k]);
        }
      }
      return;
    case WeightType::kInt8:
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        for (int64_t k = 0; k < k_total; k += kGroupSize) {
          store_group(matrix, group, k / kGroupSize, lane, quantize_int8(rows + lane * k_total + k));
        }
      }
      return;
    case WeightType::kInt4:
      if (matrix.minimums != Minimums::kStored) {
        throw std::invalid_argument("packed matrix of int4: expected stored minimums, which packing floats needs");
      }
      pack_int4(matrix, group, rows);
      return;
    case WeightType::kInt6: throw std::invalid_argument("packed matrix of int6: packing floats is not supported");
  }
}

void pack_group(PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, const uint8_t* q, float scale,
                float minimum) {
  check_integers(matrix, false);
  uint8_t bits = 0;
  for (int64_t k = 0; k < kGroupSize; ++k) bits |= q[k];
  if (matrix.type == WeightType::kInt4 && bits > 15) {
    throw std::invalid_argument("packed matrix of int4: expected levels up to 15, found " +
                                std::to_string(*std::max_element(q, q + kGroupSize)));
  }
  IntegerGroup values{{}, scale, minimum};
  std::copy_n(q, kGroupSize, values.q);
  store_group(matrix, group, k_group, lane, values);
}

void unpack_group(const PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, uint8_t* q, float* scale,
                  float* minimum) {
  check_integers(matrix, false);
  const GroupPlace place = group_place(matrix, group, k_group);
  const std::byte* base = matrix.data.data() + place.at.integers;
  for (int64_t k = 0; k < place.bytes_per_lane; k += 4) std::memcpy(q + k, base + byte_offset(lane, k), 4);
  if (place.bits == 4) {
    for (int64_t k = 0; k < kGroupSize / 2; ++k) {
      q[k + kGroupSize / 2] = q[k] >> 4;
      q[k] &= 15;
    }
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(matrix.data.data() + place.at.scales);
  *scale = half_to_float(halves[lane]);
  *minimum = matrix.minimums == Minimums::kCentred ? -static_cast<float>(centre(place.bits)) * *scale
                                                   : half_to_float(halves[kLanes + lane]);
}

namespace {

// Returns where a block of coded groups begins, in bytes.
int64_t block_place(const PackedMatrix& matrix, int64_t group, int64_t block) {
  return group * lane_group_bytes(matrix) + block * block_bytes(integer_bits(matrix.type));
}

void unpack_coded_row(const PackedMatrix& matrix, int64_t group, int64_t lane, float* out) {
  for (int64_t block = 0; block < matrix.in_features / kBlockInputs; ++block, out += kBlockInputs) {
    CodedBlock values;
    unpack_block(matrix, group, block, lane, &values);
    for (int64_t i = 0; i < kBlockInputs; ++i) {
      const int64_t g = i / kGroupSize, half = i % kGroupSize / (kGroupSize / 2);
      const auto line = [&](int64_t which) {
        return values.factors[which] * static_cast<float>(values.codes[which][g]);
      };
      const auto q = static_cast<float>(values.q[i]);
      out[i] =
          matrix.type == WeightType::kInt4 ? line(0) * q + line(1) : line(half) * (q - static_cast<float>(centre(6)));
    }
  }
}

}  // namespace

void pack_block(PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, const CodedBlock& values) {
  check_integers(matrix, true);
  const int bits = integer_bits(matrix.type);
  const uint8_t highest = *std::max_element(values.q, values.q + kBlockInputs);
  if (highest >> bits != 0) {
    throw std::invalid_argument("packed matrix of " + std::string(name(matrix.type)) + ": expected levels up to " +
                                std::to_string((1 << bits) - 1) + ", found " + std::to_string(highest));
  }
  std::byte* const base = matrix.data.data() + block_place(matrix, group, block);
  for (int64_t which = 0; which < 2; ++which) {
    const float factor = values.factors[which];
    check_half(factor);
    if (rounded_to_half(factor) != factor) {
      throw std::invalid_argument("packed matrix: expected a factor that f16 holds, found " + std::to_string(factor));
    }
    reinterpret_cast<uint16_t*>(base)[which * kLanes + lane] = float_to_half(factor);
  }
  for (int64_t g = 0; g < kBlockGroups; ++g) {
    for (int64_t which = 0; which < 2; ++which) {
      base[kLineBytes + g * kCodeBytes + which * kLanes + lane] = static_cast<std::byte>(values.codes[which][g]);
    }
    const uint8_t* const q = values.q + g * kGroupSize;
    uint8_t bytes[24] = {};
    for (int64_t k = 0; k < 16; ++k) {
      bytes[k] = static_cast<uint8_t>((q[k] & 15) | (q[k + 16] & 15) << 4);
      const int64_t shift = k / 4 % 2 * 4;
      bytes[16 + k / 8 * 4 + k % 4] |= static_cast<uint8_t>((q[k] >> 4 | q[k + 16] >> 4 << 2) << shift);
    }
    std::byte* const integers = base + kBlockHeadBytes + g * integer_bytes(bits);
    for (int64_t k = 0; k < kGroupSize * bits / 8; k += 4) std::memcpy(integers + byte_offset(lane, k), bytes + k, 4);
  }
}

void unpack_block(const PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, CodedBlock* values) {
  check_integers(matrix, true);
  const int bits = integer_bits(matrix.type);
  const std::byte* const base = matrix.data.data() + block_place(matrix, group, block);
  for (int64_t which = 0; which < 2; ++which) {
    values->factors[which] = half_to_float(reinterpret_cast<const uint16_t*>(base)[which * kLanes + lane]);
  }
  for (int64_t g = 0; g < kBlockGroups; ++g) {
    for (int64_t which = 0; which < 2; ++which) {
      values->codes[which][g] = static_cast<int8_t>(base[kLineBytes + g * kCodeBytes + which * kLanes + lane]);
    }
    uint8_t bytes[24] = {};
    const std::byte* const integers = base + kBlockHeadBytes + g * integer_bytes(bits);
    for (int64_t k = 0; k < kGroupSize * bits / 8; k += 4) std::memcpy(bytes + k, integers + byte_offset(lane, k), 4);
    uint8_t* const q = values->q + g * kGroupSize;
    for (int64_t k = 0; k < 16; ++k) {
      const int high = bytes[16 + k / 8 * 4 + k % 4] >> (k / 4 % 2 * 4);
      q[k] = static_cast<uint8_t>((bytes[k] & 15) | (high & 3) << 4);
      q[k + 16] = static_cast<uint8_t>(bytes[k] >> 4 | (high >> 2 & 3) << 4);
    }
  }
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
  const int64_t lane = row % kLanes, lanes = row / kLanes;
  const std::byte* base = matrix.data.data() + lanes * lane_group_bytes(matrix);
  if (matrix.type == WeightType::kF32) {
    for (int64_t k = 0; k < matrix.in_features; ++k) out[k] = reinterpret_cast<const float*>(base)[k * kLanes + lane];
  } else if (matrix.type == WeightType::kBf16) {
    for (int64_t k = 0; k < matrix.in_features; ++k) {
      out[k] = from_bf16(reinterpret_cast<const uint16_t*>(base)[(k / 2 * kLanes + lane) * 2 + k % 2]);
    }
  } else if (matrix.minimums == Minimums::kCoded) {
    unpack_coded_row(matrix, lanes, lane, out);
  } else {
    for (int64_t k = 0; k < matrix.in_features; k += kGroupSize) {
      uint8_t q[kGroupSize];
      float scale, minimum;
      unpack_group(matrix, lanes, k / kGroupSize, lane, q, &scale, &minimum);
      for (int64_t i = 0; i < kGroupSize; ++i) out[k + i] = scale * static_cast<float>(q[i]) + minimum;
    }
  }
}

}  // namespace smartkv::kernels
