// Whether a server can draft as a request, or its own default, asks.
#pragma once

#include <cstdint>

#include "engine/speculation/spec.h"

namespace smartkv {

// What a server has to draft with.
struct LoadedDrafts {
  bool draft_model = false, int4_weights = false;
  int64_t ranks = 1;  // processes that compute the model
};

// Throws RequestError (kInvalid) if the method needs something that is not loaded, or a draft's cache that it cannot have. Only the
// parameters of that cache's policy are left, because they depend on the model.
void check_loaded(const SpeculationSpec& spec, const LoadedDrafts& loaded);

}  // namespace smartkv
