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
#include "kernels/linear_kernels.h"
#include "kernels/packed_size.h"

namespace smartkv::kernels {
namespace {

// Returns the bits of an integer weight, 0 for floats.
int integer_bits(WeightType type) { return levels_of(type).bits(); }

int64_t lane_group_bytes(WeightType type, Minimums minimums, int64_t k) {
  if (type == WeightType::kF32) return k * kLanes * 4;
  if (type == WeightType::kBf16) return k * kLanes * 2;
  if (minimums == Minimums::kCoded) return k / kBlockInputs * block_bytes(type);
  const int64_t groups = k / kGroupSize;
  const int64_t lines = minimums == Minimums::kStored ? groups : (groups + 1) / kPairGroups;
  return groups * integer_bytes(integer_bits(type)) + lines * kLineBytes;
}

int64_t k_multiple(WeightType type, Minimums minimums) {
  if (minimums == Minimums::kCoded) return kBlockInputs;
  if (integer_bits(type) > 0) return minimums == Minimums::kShared ? kPairGroups * kGroupSize : kGroupSize;
  return type == WeightType::kF32 ? 1 : 2;
}

bool has(WeightType type, Minimums minimums) {
  if (type == WeightType::kEncoded) return false;
  if (integer_bits(type) == 0) return minimums == Minimums::kStored;
  return kLinearScalar.integers[static_cast<size_t>(type)][static_cast<size_t>(minimums)] != nullptr;
}

int64_t lane_group_bytes(const PackedMatrix& m) { return lane_group_bytes(m.type, m.minimums, m.in_features); }

// A group of 32 weights of one row. A weight is scale * q + minimum.
struct IntegerGroup {
  uint8_t q[kGroupSize];
  float scale = 0;
  float minimum = 0;
};

// Where a group of an integer matrix lies.
GroupOffsets group_place(const PackedMatrix& matrix, int64_t lanes, int64_t k_group) {
  const int64_t begin = lanes * lane_group_bytes(matrix);
  const GroupOffsets at =
      group_offsets(integer_bits(matrix.type), matrix.minimums, k_group, matrix.in_features / kGroupSize);
  return {begin + at.integers, begin + at.scales};
}

// Calls f(quad, word, shift, bits, from) for each quad and plane of a lane's group: `bits` bits of each of the quad's
// four levels, `from` on, lie at `shift` in the bytes of the word.
template <class F>
void for_planes(const Levels& levels, int64_t lane, const F& f) {
#pragma GCC unroll 8
  for (int quad = 0; quad < kGroupSize / 4; ++quad) {
    const auto plane = [&](int first_line, int bits, int from) {
      const PlanePlace at = plane_place(bits, quad);
      f(4 * quad, 64 * (first_line + at.line) + 4 * lane, at.shift, (1u << bits) - 1, from);
    };
    plane(0, levels.low, 0);
    if (levels.high > 0) plane(levels.low, levels.high, levels.low);
  }
}

constexpr uint32_t kEachByte = 0x01010101;

template <int Low, int High>
void store_planes(int64_t lane, const uint8_t* q, std::byte* integers) {
  for_planes(Levels{Low, High}, lane, [&](int64_t quad, int64_t at, int shift, uint32_t mask, int from) {
    uint32_t word, stored;
    std::memcpy(&word, q + quad, sizeof word);
    std::memcpy(&stored, integers + at, sizeof stored);
    stored &= ~(kEachByte * mask << shift);
    stored |= (word >> from & kEachByte * mask) << shift;
    std::memcpy(integers + at, &stored, sizeof stored);
  });
}

// Every weight of a model goes through this at the start, so the planes are constants.
void store_levels(WeightType type, int64_t lane, const uint8_t* q, std::byte* integers) {
  switch (levels_of(type).bits()) {
    case 8: return store_planes<8, 0>(lane, q, integers);
    case 6: return store_planes<4, 2>(lane, q, integers);
    case 5: return store_planes<4, 1>(lane, q, integers);
    case 4: return store_planes<4, 0>(lane, q, integers);
    case 3: return store_planes<2, 1>(lane, q, integers);
    default: return store_planes<2, 0>(lane, q, integers);
  }
}

void load_levels(WeightType type, int64_t lane, const std::byte* integers, uint8_t* q) {
  std::fill_n(q, kGroupSize, uint8_t{0});
  for_planes(levels_of(type), lane, [&](int64_t quad, int64_t at, int shift, uint32_t mask, int from) {
    uint32_t word, stored;
    std::memcpy(&word, q + quad, sizeof word);
    std::memcpy(&stored, integers + at, sizeof stored);
    word |= (stored >> shift & kEachByte * mask) << from;
    std::memcpy(q + quad, &word, sizeof word);
  });
}

// Returns the level that the integer q stands for.
float level_value(const Levels& levels, uint8_t q) {
  return static_cast<float>(levels.table == nullptr ? q : levels.table[q]);
}

// count: a multiple of 8.
void check_levels(WeightType type, const uint8_t* q, int64_t count) {
  uint64_t all = 0;  // the bits of all levels, because a search for the greatest one takes longer
  for (int64_t i = 0; i < count; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, q + i, sizeof eight);
    all |= eight;
  }
  const int bits = integer_bits(type);
  if ((all & (uint64_t{0xff} << bits & 0xff) * 0x0101010101010101) == 0) return;
  throw std::invalid_argument("packed matrix of " + std::string(name(type)) + ": expected levels up to " +
                              std::to_string((1 << bits) - 1) + ", found " +
                              std::to_string(*std::max_element(q, q + count)));
}

// Shifts the levels so that the minimum becomes that of centred integers. The weights stay the same. Throws
// std::invalid_argument if a level would leave its range.
void centre_levels(const Levels& levels, IntegerGroup& group) {
  const auto middle = static_cast<float>(levels.centre);
  const float shift = group.scale == 0 ? 0 : group.minimum / group.scale + middle;
  const bool fits = group.scale != 0 || group.minimum == 0;
  if (levels.table != nullptr ? group.minimum == -middle * group.scale : fits && shift == 0) return;
  for (uint8_t& q : group.q) {
    const float level = static_cast<float>(q) + shift;
    if (!fits || levels.table != nullptr || level != std::nearbyint(level) || level < 0 || level >= 2 * middle) {
      throw std::invalid_argument("packed matrix of centered integers: expected a minimum of -" +
                                  std::to_string(levels.centre) + " times the scale, found scale " +
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

float rounded_to_half(float value) { return half_to_float(float_to_half(value)); }

// Floats of 4 exponent and 3 mantissa bits are the upper bits of an f16 that stands for 2^-8 of their value. The scale
// of doubled levels is half of such a float.
uint8_t to_e4m3(float value) {
  const uint16_t half = float_to_half(value / 128);
  if (half >= 0x7f << 7 || (half & 0x7f) != 0 || half_to_float(half) * 128 != value) {
    throw std::invalid_argument(
        "packed matrix of nvfp4: expected twice the scale to be a float of E4M3, found a scale of " +
        std::to_string(value));
  }
  return static_cast<uint8_t>(half >> 7);
}
float from_e4m3(uint8_t bits) { return half_to_float(static_cast<uint16_t>(bits << 7)) * 128; }

// Writes what scales the weights of a lane's group. The levels are centred already.
void store_scales(Scales kind, const IntegerGroup& group, int64_t lane, std::byte* scales) {
  auto* const halves = reinterpret_cast<uint16_t*>(scales);
  if (kind == Scales::kHalves) {
    scales[lane] = static_cast<std::byte>(to_e4m3(group.scale));
    scales[kLanes + lane] = static_cast<std::byte>(to_e4m3(group.minimum));
  } else if (kind == Scales::kPowers) {
    halves[lane] = to_bf16(group.scale);
    if (from_bf16(halves[lane]) != group.scale) {
      throw std::invalid_argument("packed matrix of mxfp4: expected a scale that bf16 holds, found " +
                                  std::to_string(group.scale));
    }
  } else {
    check_half(group.scale);
    check_half(group.minimum);
    halves[lane] = float_to_half(group.scale);
    if (kind == Scales::kShared) {
      const float ratio = group.scale == 0 ? 0 : std::nearbyint(group.minimum / group.scale);
      if (rounded_to_half(ratio) != ratio || ratio * group.scale != group.minimum) {
        throw std::invalid_argument(
            "packed matrix of shared groups: expected a minimum that is a multiple of the scale, "
            "found scale " +
            std::to_string(group.scale) + " and minimum " + std::to_string(group.minimum));
      }
      halves[kLanes + lane] = float_to_half(ratio);
    }
    if (kind == Scales::kStored) halves[kLanes + lane] = float_to_half(group.minimum);
  }
}

void store_group(PackedMatrix& matrix, int64_t lanes, int64_t k_group, int64_t lane, IntegerGroup group) {
  const GroupOffsets at = group_place(matrix, lanes, k_group);
  const Scales kind = scales_of(matrix.type, matrix.minimums);
  if (matrix.minimums == Minimums::kCentred && kind != Scales::kHalves) centre_levels(levels_of(matrix.type), group);
  store_scales(kind, group, lane, matrix.data.data() + at.scales);
  store_levels(matrix.type, lane, group.q, matrix.data.data() + at.integers);
}

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
  static constexpr std::string_view kNames[] = {
      "f32",  "bf16", "int8", "int4",  "int6",  "int5",
      "int3", "int2", "iq4",  "mxfp4", "nvfp4", "encoded"};  // in the order of WeightType
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

PackedMatrix make_encoded(std::shared_ptr<const EncodedRows> rows, int64_t out_features, int64_t in_features) {
  return {WeightType::kEncoded, Minimums::kStored, out_features, in_features, {}, std::move(rows)};
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
    default:
      throw std::invalid_argument("packed matrix of " + std::string(name(matrix.type)) +
                                  ": packing floats is not supported");
  }
}

void pack_group(PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, const uint8_t* q, float scale,
                float minimum) {
  check_integers(matrix, false);
  check_levels(matrix.type, q, kGroupSize);
  IntegerGroup values{{}, scale, minimum};
  std::copy_n(q, kGroupSize, values.q);
  store_group(matrix, group, k_group, lane, values);
}

void unpack_group(const PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, uint8_t* q, float* scale,
                  float* minimum) {
  check_integers(matrix, false);
  const GroupOffsets at = group_place(matrix, group, k_group);
  load_levels(matrix.type, lane, matrix.data.data() + at.integers, q);
  const std::byte* const scales = matrix.data.data() + at.scales;
  const auto* const halves = reinterpret_cast<const uint16_t*>(scales);
  const Scales kind = scales_of(matrix.type, matrix.minimums);
  if (kind == Scales::kHalves) {
    *scale = from_e4m3(static_cast<uint8_t>(scales[lane]));
    *minimum = from_e4m3(static_cast<uint8_t>(scales[kLanes + lane]));
    return;
  }
  *scale = kind == Scales::kPowers ? from_bf16(halves[lane]) : half_to_float(halves[lane]);
  *minimum = kind == Scales::kStored   ? half_to_float(halves[kLanes + lane])
             : kind == Scales::kShared ? half_to_float(halves[kLanes + lane]) * *scale
                                       : -static_cast<float>(levels_of(matrix.type).centre) * *scale;
}

namespace {

// Returns where a block of coded groups begins, in bytes.
int64_t block_place(const PackedMatrix& matrix, int64_t group, int64_t block) {
  return group * lane_group_bytes(matrix) + block * block_bytes(matrix.type);
}

float coded_weight(WeightType type, const CodedBlock& block, int64_t i) {
  const Levels levels = levels_of(type);
  const int64_t g = i / kGroupSize, half = i % kGroupSize / (kGroupSize / 2);
  const float q = level_value(levels, block.q[i]), centred = q - static_cast<float>(levels.centre);
  const auto scaled = [&](int64_t which, int code) { return block.factors[which] * static_cast<float>(code); };
  const auto pair = static_cast<uint8_t>(block.codes[half][g]);
  switch (scales_of(type, Minimums::kCoded)) {
    case Scales::kCodedPairs: return scaled(0, pair & 15) * q + scaled(1, pair >> 4);
    case Scales::kCodedHalves: return scaled(half, block.codes[half][g]) * centred;
    case Scales::kCodedScales: return scaled(0, block.codes[0][g]) * centred;
    default: return scaled(0, block.codes[0][g]) * q + scaled(1, block.codes[1][g]);
  }
}

void unpack_coded_row(const PackedMatrix& matrix, int64_t group, int64_t lane, float* out) {
  for (int64_t block = 0; block < matrix.in_features / kBlockInputs; ++block, out += kBlockInputs) {
    CodedBlock values;
    unpack_block(matrix, group, block, lane, &values);
    for (int64_t i = 0; i < kBlockInputs; ++i) out[i] = coded_weight(matrix.type, values, i);
  }
}

}  // namespace

void pack_block(PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, const CodedBlock& values) {
  check_integers(matrix, true);
  check_levels(matrix.type, values.q, kBlockInputs);
  std::byte* const base = matrix.data.data() + block_place(matrix, group, block);
  for (int64_t which = 0; which < 2; ++which) {
    const float factor = values.factors[which];
    check_half(factor);
    if (rounded_to_half(factor) != factor) {
      throw std::invalid_argument("packed matrix: expected a factor that f16 holds, found " + std::to_string(factor));
    }
    reinterpret_cast<uint16_t*>(base)[which * kLanes + lane] = float_to_half(factor);
  }
  std::byte* const integers = base + block_head_bytes(matrix.type);
  for (int64_t g = 0; g < kBlockGroups; ++g) {
    for (int64_t which = 0; which < codes_of(matrix.type); ++which) {
      base[kLineBytes + g * code_bytes(matrix.type) + which * kLanes + lane] =
          static_cast<std::byte>(values.codes[which][g]);
    }
    store_levels(matrix.type, lane, values.q + g * kGroupSize, integers + g * integer_bytes(integer_bits(matrix.type)));
  }
}

void unpack_block(const PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, CodedBlock* values) {
  check_integers(matrix, true);
  const std::byte* const base = matrix.data.data() + block_place(matrix, group, block);
  const std::byte* const integers = base + block_head_bytes(matrix.type);
  for (int64_t which = 0; which < 2; ++which) {
    values->factors[which] = half_to_float(reinterpret_cast<const uint16_t*>(base)[which * kLanes + lane]);
  }
  for (int64_t g = 0; g < kBlockGroups; ++g) {
    for (int64_t which = 0; which < 2; ++which) {
      const std::byte code = base[kLineBytes + g * code_bytes(matrix.type) + which * kLanes + lane];
      values->codes[which][g] = which < codes_of(matrix.type) ? static_cast<int8_t>(code) : int8_t{0};
    }
    load_levels(matrix.type, lane, integers + g * integer_bytes(integer_bits(matrix.type)), values->q + g * kGroupSize);
  }
}

namespace {

// Writes a row in the order of the columns, without its factor.
void unpack_columns(const PackedMatrix& matrix, int64_t row, float* out) {
  if (matrix.type == WeightType::kEncoded) return matrix.encoded->expand(row, out);
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
      const Scales kind = scales_of(matrix.type, matrix.minimums);
      const Levels levels = levels_of(matrix.type);
      for (int64_t i = 0; i < kGroupSize; ++i) {
        const float level = level_value(levels, q[i]), of_level = level - static_cast<float>(levels.centre);
        const bool second = kind == Scales::kHalves && i >= kGroupSize / 2;
        out[k + i] = has_minimums(kind) ? scale * level + minimum : (second ? minimum : scale) * of_level;
      }
    }
  }
}

}  // namespace

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
  unpack_columns(matrix, row, out);
  if (!matrix.row_factors.empty()) {
    for (int64_t k = 0; k < matrix.in_features; ++k) out[k] *= matrix.row_factors[static_cast<size_t>(row)];
  }
  if (!matrix.input_order.empty()) {
    const std::vector<float> columns(out, out + matrix.in_features);
    for (size_t i = 0; i < columns.size(); ++i) out[matrix.input_order[i]] = columns[i];
  }
}

}  // namespace smartkv::kernels
