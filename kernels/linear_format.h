// The packed layouts of kernels/linear.h in numbers, shared by packing and products.
#pragma once

#include <cstdint>

namespace smartkv::kernels {

constexpr int64_t kLanes = 16;      // output features side by side
constexpr int64_t kGroupSize = 32;  // input features that share a scale and a minimum

// A group of 32 inputs by 16 lanes: integers, f16 [16] scale and, where they are stored, f16 [16] minimum.
constexpr int64_t integer_bytes(int bits) { return kGroupSize * kLanes * bits / 8; }
constexpr int64_t kScaleBytes = 2 * kLanes;
constexpr int64_t kLineBytes = 2 * kScaleBytes;  // of a cache line: scales and minimums of a group, or scales of two

// Of centred groups two lie together: the integers of both, then the scales of both. The last one may be alone, and has a line
// all the same. So integers begin at multiples of 64 bytes.
constexpr int64_t kPairGroups = 2;
constexpr int64_t pair_bytes(int bits) { return kPairGroups * integer_bytes(bits) + kLineBytes; }

// Of coded groups eight make a block of 256 inputs: f16 [2][16] factors, the groups' codes i8 [2][16], their integers.
constexpr int64_t kBlockGroups = 8;
constexpr int64_t kBlockInputs = kBlockGroups * kGroupSize;
constexpr int64_t kCodeBytes = 2 * kLanes;  // of a group
constexpr int64_t kBlockHeadBytes = kLineBytes + kBlockGroups * kCodeBytes;
constexpr int64_t block_bytes(int bits) { return kBlockHeadBytes + kBlockGroups * integer_bytes(bits); }

// Where a group of a lane group lies, in bytes from its beginning. Not of coded groups.
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
  return {begin + (group - first) * integer_bytes(bits), begin + in_pair * integer_bytes(bits) + (group - first) * kScaleBytes};
}

// Of centred integers the level that stands for 0.
constexpr int64_t centre(int bits) { return int64_t{1} << (bits - 1); }

// A group of x whose largest magnitude is below this counts as zeros: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Where byte k of a lane's integers lies in a group. Of int8 it is weight k; of int4 it holds k in its low and k + 16 in
// its high nibble. Of int6 these are the lower four bits; bytes k = 16 to 23 have the upper two: weights k % 4 + 8 (k / 4 - 4),
// the same + 16, + 4 and + 20, from the lowest bits up.
constexpr int64_t byte_offset(int64_t lane, int64_t k) { return (k / 4) * 4 * kLanes + lane * 4 + k % 4; }

}  // namespace smartkv::kernels
