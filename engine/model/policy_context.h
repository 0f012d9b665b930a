// What the cache policies of a model work with.
#pragma once

#include "cache/policy.h"
#include "engine/gates/gate_set.h"
#include "engine/model/model.h"

namespace smartkv {

SlidingWindow sliding_window(const ModelConfig& config);

// `model` and `threads` (null: single-threaded commits) outlive the context and its policies. `gates`: what policies
// may name besides those that ship. Throws CacheError for a gate that cannot be opened.
PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads,
                             const GateFiles& gates = {});

}  // namespace smartkv
