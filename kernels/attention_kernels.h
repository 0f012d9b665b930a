// What each CPU level implements of attention(): one block of query rows over a range of stretches.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu_level.h"

namespace smartkv::kernels {

constexpr int64_t kMaxBlockRows = 48;       // queries x heads of one block
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kStretchSegments = 4;     // segments of one stretch: the unit of splitting and of exact merging

// A stretch's result for one row: maximum (base 2 exponent), sum, unnormalised output [head_dim].
constexpr int64_t partial_floats(int64_t head_dim) { return head_dim + 2; }

struct AttentionKernels {
  // `partial`: nullptr, or where stretch s of the item puts its rows: partial + (s - stretch) * rows * partial_floats.
  void (*block)(const AttentionShape& shape, const AttentionTask& task, const AttentionScratch::Item& item,
                float* partial);
  // Merges the partials of all stretches of an item in order and writes task.out.
  void (*merge)(const AttentionShape& shape, const AttentionTask& task, const AttentionScratch::Item& item,
                const float* partial);
};

extern const AttentionKernels kAttentionScalar, kAttentionAvx2, kAttentionAvx512, kAttentionAvx512Vnni;

}  // namespace smartkv::kernels
