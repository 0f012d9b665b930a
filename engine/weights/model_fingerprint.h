// The one fingerprint by which files that belong to a model know it: prefix files, gates, calibration.
#pragma once

#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// Returns 32 hexadecimal digits that stand for all that the model computes: every field of its configuration but its name, and
// every tensor with its type, shape and order of rows. A renamed file keeps its fingerprint; the same weights in another format
// have another one. Reads all weights (about a second per 5 GB in memory).
std::string model_fingerprint(const Weights& weights);

}  // namespace smartkv
