// A state of the prefix cache, as operators see it. It has no tokens and no text.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv {

struct PrefixListing {
  std::string policy;  // its specification, as JSON
  int64_t tokens = 0;
  int64_t bytes = 0, freed_bytes = 0;  // that it holds in memory, and that evicting it frees
  int64_t idle_requests = 0;           // requests that looked up a prefix since its last use
  double value = 0;                    // expected work saved per byte and request, in tokens without context
  bool in_memory = false, in_file = false;
};

constexpr int64_t kMostPrefixListings = 1000;

}  // namespace smartkv
