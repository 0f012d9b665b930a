// How channels are selected, whatever is done with the others.
#pragma once

#include <cstdint>

namespace smartkv {

struct SelectionOptions {
  // True: the worth of a key's channel is E[q^2] E[k^2]. False: it is the size of the keys.
  bool query_aware = true;
  double decay = 0.8;          // Decay of the means, per boundary.
  int64_t update_every = 256;  // Tokens between selections.
  // A layer is packed after this many selections in a row that retain `retention` of the worth.
  int64_t stable_updates = 2;
  double retention = 0.9;
  int64_t probes = 8;  // Probe queries before each boundary.
};

}  // namespace smartkv
