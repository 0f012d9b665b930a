// Levels, sizes and offsets of the packed layouts of kernels/linear.h, shared by packing and products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace smartkv::kernels {

constexpr int64_t kLanes = 16;      // output features side by side
constexpr int64_t kGroupSize = 32;  // input features that share a scale and a minimum

// The levels of an integer type. A level has `low` lower bits in one plane and `high` upper bits in another, and goes
// through a table if the type has one.
struct Levels {
  int low = 0, high = 0;           // 0: there is no such plane.
  int highest = 0;                 // after the table
  int centre = 0;                  // The level that stands for 0 in groups without minimums.
  const uint8_t* table = nullptr;  // [16]
  constexpr int bits() const { return low + high; }
};
// In the order of WeightType: f32, bf16, int8, int4, int6, int5, int3, int2, iq4, mxfp4, nvfp4, encoded.
inline constexpr Levels kLevelsOfTypes[kWeightTypes] = {{},
                                                        {},
                                                        {8, 0, 255, 128},
                                                        {4, 0, 15, 8},
                                                        {4, 2, 63, 32},
                                                        {4, 1, 31, 16},
                                                        {2, 1, 7, 4},
                                                        {2, 0, 3, 2},
                                                        {4, 0, 241, kIq4Centre, kIq4Levels},
                                                        {4, 0, 24, kFp4Centre, kFp4Levels},
                                                        {4, 0, 24, kFp4Centre, kFp4Levels},
                                                        {}};
constexpr const Levels& levels_of(WeightType type) { return kLevelsOfTypes[static_cast<size_t>(type)]; }

// What scales the weights of a group.
enum class Scales : uint8_t {
  kStored,       // f16 scale and f16 minimum
  kCentred,      // f16 scale
  kShared,       // for two groups: f16 scale and f16 minimum / scale, stored where kCentred has the scales of the pair
  kPowers,       // bf16 scale (mxfp4), stored as kCentred
  kHalves,       // 8-bit float E4M3 for each half of 16 weights (nvfp4), stored as kCentred
  kCodedLines,   // codes of scale and minimum (int4, int5)
  kCodedHalves,  // code of the scale of each half (int6, int3)
  kCodedPairs,   // for each half, 4 bits of scale and 4 bits of minimum (int2)
  kCodedScales   // code of the scale (iq4)
};
constexpr Scales scales_of(WeightType type, Minimums minimums) {
  if (type == WeightType::kMxfp4) return Scales::kPowers;
  if (type == WeightType::kNvfp4) return Scales::kHalves;
  if (minimums == Minimums::kStored) return Scales::kStored;
  if (minimums == Minimums::kShared) return Scales::kShared;
  if (minimums == Minimums::kCentred) return Scales::kCentred;
  if (type == WeightType::kInt2) return Scales::kCodedPairs;
  if (type == WeightType::kIq4) return Scales::kCodedScales;
  return type == WeightType::kInt6 || type == WeightType::kInt3 ? Scales::kCodedHalves : Scales::kCodedLines;
}
// Returns whether each half of a group has its own scale.
constexpr bool scales_halves(Scales scales) {
  return scales == Scales::kHalves || scales == Scales::kCodedHalves || scales == Scales::kCodedPairs;
}
// Returns whether a weight is scale * q + minimum. Otherwise it is scale * (q - centre).
constexpr bool has_minimums(Scales scales) {
  return scales == Scales::kStored || scales == Scales::kShared || scales == Scales::kCodedLines ||
         scales == Scales::kCodedPairs;
}

// A group of 32 inputs by 16 lanes consists of integers, f16 [16] scales and, if they are stored, f16 [16] minimums.
constexpr int64_t integer_bytes(int bits) { return kGroupSize * kLanes * bits / 8; }
constexpr int64_t kScaleBytes = 2 * kLanes;
constexpr int64_t kLineBytes = 2 * kScaleBytes;  // A cache line: scales and minimums of one group, or scales of two.

// Centred and shared groups lie in pairs: the integers of both, then the scales of both. The last group may be alone,
// and has a whole line for its scales all the same. So integers always begin at multiples of 64 bytes.
constexpr int64_t kPairGroups = 2;
constexpr int64_t pair_bytes(int bits) { return kPairGroups * integer_bytes(bits) + kLineBytes; }

// Eight coded groups form a block of 256 inputs: f16 [2][16] factors, then the codes of all groups, i8 [2][16] each or
// [16] with one code (kCodedScales), then their integers.
constexpr int64_t kBlockGroups = 8;
constexpr int64_t kBlockInputs = kBlockGroups * kGroupSize;
constexpr int64_t codes_of(WeightType type) { return type == WeightType::kIq4 ? 1 : 2; }
constexpr int64_t code_bytes(WeightType type) { return codes_of(type) * kLanes; }  // Codes of one group.
constexpr int64_t block_head_bytes(WeightType type) { return kLineBytes + kBlockGroups * code_bytes(type); }
constexpr int64_t block_bytes(WeightType type) {
  return block_head_bytes(type) + kBlockGroups * integer_bytes(levels_of(type).bits());
}

// Where a group lies, in bytes from the beginning of its lane group. Not for coded groups.
struct GroupOffsets {
  int64_t integers, scales;
};
constexpr GroupOffsets group_offsets(int bits, Minimums minimums, int64_t group, int64_t n_groups) {
  if (minimums == Minimums::kStored) {
    const int64_t begin = group * (integer_bytes(bits) + kLineBytes);
    return {begin, begin + integer_bytes(bits)};
  }
  const int64_t first = group / kPairGroups * kPairGroups, begin = first / kPairGroups * pair_bytes(bits);
  const int64_t in_pair = first + 1 < n_groups ? kPairGroups : 1;
  return {begin + (group - first) * integer_bytes(bits),
          begin + in_pair * integer_bytes(bits) + (minimums == Minimums::kShared ? 0 : (group - first) * kScaleBytes)};
}

// If the largest magnitude of a group of x is below this, the group counts as zeros: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Where four neighbouring weights of each lane ("quad" 0 to 7 of a group) lie in a plane of `bits` bits: the line of 64
// bytes, and the place of the bits in a byte. Byte 4 lane + i of a line belongs to weight i of its quads.
struct PlanePlace {
  int line, shift;
};
constexpr PlanePlace plane_place(int bits, int quad) {
  switch (bits) {
    case 8: return {quad, 0};
    case 4: return {quad % 4, quad / 4 * 4};
    case 2: return {quad % 4 / 2, quad % 2 * 4 + quad / 4 * 2};
    default: return {0, quad};  // 1 bit
  }
}

}  // namespace smartkv::kernels
