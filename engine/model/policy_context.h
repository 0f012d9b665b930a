// The context that the cache policies of a model work with.
#pragma once

#include "cache/policy.h"
#include "engine/gates/gate_set.h"
#include "engine/model/model.h"

namespace smartkv {

// Returns the sliding window of the model and the number of layers that have it.
SlidingWindow sliding_window(const ModelConfig& config);

// Returns a context with a page pool of its own. `model` and `threads` must outlive the context and its policies. If
// `threads` is null, caches commit on the calling thread only. gates: the gates and channel statistics that policies
// may name. sensitivity: PolicyContext::load_sensitivity. Throws CacheError for a gate or a
// channel_worth file that cannot be opened.
PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads,
                             const GateSources& gates = {},
                             std::function<std::shared_ptr<const Sensitivity>()> sensitivity = nullptr);

}  // namespace smartkv
