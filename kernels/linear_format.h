// The packed layouts of kernels/linear.h in numbers, shared by packing and products.
#pragma once

#include <cstdint>

namespace smartkv::kernels {

constexpr int64_t kLanes = 16;      // output features side by side
constexpr int64_t kGroupSize = 32;  // input features that share a scale and a minimum

// A group of 32 inputs by 16 lanes: integers, f16 [16] scale and, where they are stored, f16 [16] minimum.
constexpr int64_t integer_bytes(bool int4) { return kGroupSize * kLanes / (int4 ? 2 : 1); }
constexpr int64_t kScaleBytes = 2 * kLanes;
constexpr int64_t kLineBytes = 2 * kScaleBytes;  // of a cache line: scales and minimums of a group, or scales of two

// Of centred groups two lie together: the integers of both, then the scales of both. The last one may be alone, and has a line
// all the same. So integers begin at multiples of 64 bytes.
constexpr int64_t kPairGroups = 2;
constexpr int64_t pair_bytes(bool int4) { return kPairGroups * integer_bytes(int4) + kLineBytes; }

// Where a group of a lane group lies, in bytes from its beginning.
struct GroupOffsets {
  int64_t integers, scales;
};
constexpr GroupOffsets group_offsets(bool int4, bool centred, int64_t group, int64_t n_groups) {
  if (!centred) {
    const int64_t begin = group * (integer_bytes(int4) + kLineBytes);
    return {begin, begin + integer_bytes(int4)};
  }
  const int64_t first = group / kPairGroups * kPairGroups, begin = first / kPairGroups * pair_bytes(int4);
  const int64_t in_pair = first + 1 < n_groups ? kPairGroups : 1;
  return {begin + (group - first) * integer_bytes(int4), begin + in_pair * integer_bytes(int4) + (group - first) * kScaleBytes};
}

// Of centred integers the level that stands for 0.
constexpr int64_t centre(bool int4) { return int4 ? 8 : 128; }

// A group of x whose largest magnitude is below this counts as zeros: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Where byte k of a lane's integers lies in a group. Of int8 it is weight k; of int4 it holds k in its low and k + 16 in
// its high nibble.
constexpr int64_t byte_offset(int64_t lane, int64_t k) { return (k / 4) * 4 * kLanes + lane * 4 + k % 4; }

}  // namespace smartkv::kernels
