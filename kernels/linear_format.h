// Sizes and offsets of the packed layouts of kernels/linear.h, shared by packing and products.
#pragma once

#include <cstdint>

namespace smartkv::kernels {

constexpr int64_t kLanes = 16;      // output features side by side
constexpr int64_t kGroupSize = 32;  // input features that share a scale and a minimum

// A group of 32 inputs by 16 lanes consists of integers, f16 [16] scales and, if they are stored, f16 [16] minimums.
constexpr int64_t integer_bytes(int bits) { return kGroupSize * kLanes * bits / 8; }
constexpr int64_t kScaleBytes = 2 * kLanes;
constexpr int64_t kLineBytes = 2 * kScaleBytes;  // A cache line: scales and minimums of one group, or scales of two.

// Centred groups lie in pairs: the integers of both, then the scales of both. The last group may be alone, and has a
// whole line for its scales all the same. So integers always begin at multiples of 64 bytes.
constexpr int64_t kPairGroups = 2;
constexpr int64_t pair_bytes(int bits) { return kPairGroups * integer_bytes(bits) + kLineBytes; }

// Eight coded groups form a block of 256 inputs: f16 [2][16] factors, then the codes of all groups, i8 [2][16] each,
// then their integers.
constexpr int64_t kBlockGroups = 8;
constexpr int64_t kBlockInputs = kBlockGroups * kGroupSize;
constexpr int64_t kCodeBytes = 2 * kLanes;  // Codes of one group.
constexpr int64_t kBlockHeadBytes = kLineBytes + kBlockGroups * kCodeBytes;
constexpr int64_t block_bytes(int bits) { return kBlockHeadBytes + kBlockGroups * integer_bytes(bits); }

// Where a group lies, in bytes from the beginning of its lane group. Not for coded groups.
struct GroupOffsets {
  int64_t integers, scales;
};
constexpr GroupOffsets group_offsets(int bits, bool centred, int64_t group, int64_t n_groups) {
  if (!centred) {
    const int64_t begin = group * (integer_bytes(bits) + kLineBytes);
    return {begin, begin + integer_bytes(bits)};
  }
  const int64_t first = group / kPairGroups * kPairGroups, begin = first / kPairGroups * pair_bytes(bits);
  const int64_t in_pair = first + 1 < n_groups ? kPairGroups : 1;
  return {begin + (group - first) * integer_bytes(bits),
          begin + in_pair * integer_bytes(bits) + (group - first) * kScaleBytes};
}

// Returns the level of centred integers that stands for 0.
constexpr int64_t centre(int bits) { return int64_t{1} << (bits - 1); }

// If the largest magnitude of a group of x is below this, the group counts as zeros: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Returns where byte k of a lane's integers lies in a group.
//  - int8: byte k is weight k.
//  - int4: byte k holds weight k in its low nibble and weight k + 16 in its high nibble.
//  - int6: bytes 0 to 15 hold the lower four bits in the same way. Bytes k = 16 to 23 hold the upper two bits of four
//    weights, from the lowest bits up: weight k % 4 + 8 (k / 4 - 4), and the same + 16, + 4 and + 20.
constexpr int64_t byte_offset(int64_t lane, int64_t k) { return (k / 4) * 4 * kLanes + lane * 4 + k % 4; }

}  // namespace smartkv::kernels
