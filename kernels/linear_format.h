// The packed layouts of kernels/linear.h in numbers, shared by packing and products.
#pragma once

#include <cstdint>

namespace smartkv::kernels {

constexpr int64_t kLanes = 16;      // output features side by side
constexpr int64_t kGroupSize = 32;  // input features that share a scale and a minimum

// Bytes of one group of 32 inputs by 16 lanes: the integers, then f16 [16] scale and f16 [16] minimum.
constexpr int64_t kInt8Bytes = kGroupSize * kLanes;
constexpr int64_t kInt4Bytes = kGroupSize * kLanes / 2;
constexpr int64_t kScaleBytes = 2 * kLanes;
constexpr int64_t kInt8GroupBytes = kInt8Bytes + 2 * kScaleBytes;
constexpr int64_t kInt4GroupBytes = kInt4Bytes + 2 * kScaleBytes;

// A group of x whose largest magnitude is below this counts as zeros: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Where byte k of a lane's integers lies in a group. Of int8 it is weight k; of int4 it holds k in its low and k + 16 in
// its high nibble.
constexpr int64_t byte_offset(int64_t lane, int64_t k) { return (k / 4) * 4 * kLanes + lane * 4 + k % 4; }

}  // namespace smartkv::kernels
