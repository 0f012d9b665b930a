// Checks that a server can draft as a request, or the server's own default, asks.
#pragma once

#include <cstdint>

#include "engine/speculation/spec.h"

namespace smartkv {

// The models that a server has loaded for drafting.
struct LoadedDrafts {
  bool draft_model = false, int4_weights = false;
  int64_t ranks = 1;  // tensor-parallel processes that compute the model
};

// Throws RequestError (kInvalid) if the method needs a model that is not loaded, or if its draft's cache cannot have
// the requested policy. The parameters of that policy are not checked here, because they depend on the model.
void check_loaded(const SpeculationSpec& spec, const LoadedDrafts& loaded);

}  // namespace smartkv
