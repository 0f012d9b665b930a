// What a computed prefix depends on besides its policy and its tokens.
#pragma once

#include <string>

#include "cache/sequence_cache.h"
#include "engine/engine.h"
#include "engine/weights/weights.h"

namespace smartkv {

// Two engines of the same identity compute the same bits: same weights (all of them are read), numeric options, gates, program
// with the module of its backend, and CPU level; but for rounding, where the backend is not batch-invariant. Throws CacheError when a file cannot be read.
std::string prefix_identity(const Weights& weights, const EngineOptions& options, const CacheShape& shape);

}  // namespace smartkv
