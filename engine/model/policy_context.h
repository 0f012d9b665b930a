// What the cache policies of a model work with.
#pragma once

#include "cache/policy.h"
#include "engine/model/model.h"

namespace smartkv {

// `model` and `threads` (null: single-threaded commits) outlive the context and its policies.
PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads);

}  // namespace smartkv
