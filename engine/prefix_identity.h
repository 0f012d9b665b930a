// Identifies everything that a computed prefix depends on besides its policy and its tokens.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/weights/weights.h"

namespace smartkv {

// Returns a text that is the same for two engines only if they compute the same bits (up to rounding, if the backend is
// not batch-invariant). It covers the model, every option that changes bits, the files of gates and channel worth, the
// program with the module of its backend, and the CPU level. Reads all weights. Throws CacheError naming a file that
// cannot be read.
std::string prefix_identity(const Weights& weights, const EngineOptions& options);

}  // namespace smartkv
