// What ranks 1 and on do: what rank 0 tells them (engine/parallel/rank_link.h).
#pragma once

#include "cache/policy.h"
#include "engine/parallel/part_model.h"

namespace smartkv {

// Until rank 0 says that it is over. context: of `part`. Throws RankError when a rank is gone, and whatever fails a pass as a whole.
void follow(RankGroup& ranks, PartModel& part, const PolicyContext& context);

}  // namespace smartkv
