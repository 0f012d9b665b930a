// The loop of tensor-parallel ranks 1 and up, which apply the operations that rank 0 sends
// (engine/parallel/rank_link.h).
#pragma once

#include "cache/policy.h"
#include "engine/parallel/part_model.h"

namespace smartkv {

// Applies operations until rank 0 sends kEnd. `context` is the policy context of `part`. Throws RankError if a rank is
// gone, and any exception that fails a pass as a whole.
void follow(RankGroup& ranks, PartModel& part, const PolicyContext& context);

}  // namespace smartkv
