// The size of a packed matrix, computed without making one.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace smartkv::kernels {

// Returns the bytes of make_packed(type, out_features, in_features, minimums).
int64_t packed_bytes(WeightType type, int64_t out_features, int64_t in_features, Minimums minimums = Minimums::kStored);

}  // namespace smartkv::kernels
