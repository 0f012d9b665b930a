// What the cache policies of a model work with.
#pragma once

#include "cache/policy.h"
#include "engine/gates/gate_set.h"
#include "engine/model/model.h"

namespace smartkv {

SlidingWindow sliding_window(const ModelConfig& config);

// `model` and `threads` (null: single-threaded commits) outlive the context and its policies. `gates`: those that
// policies may name. Throws CacheError for a gate that cannot be opened.
PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads,
                             const GateSources& gates = {});

}  // namespace smartkv
