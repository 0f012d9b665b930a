// How channels are chosen, whatever becomes of the others.
#pragma once

#include <cstdint>

namespace smartkv {

struct SelectionOptions {
  bool query_aware = true;     // worth of a key's channel by E[q^2] E[k^2]; false: by the keys' size
  double decay = 0.8;          // of the means, per boundary
  int64_t update_every = 256;  // tokens between selections
  int64_t stable_updates = 2;  // selections in a row that retain `retention` of the worth before a layer is packed
  double retention = 0.9;
  int64_t probes = 8;          // queries before each boundary
};

}  // namespace smartkv
