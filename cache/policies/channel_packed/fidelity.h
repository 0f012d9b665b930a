// How far a query's attention over packed keys is from that over full ones.
#pragma once

#include <cstdint>
#include <span>

namespace smartkv {

class StateWriter;  // cache/state_io.h
class StateReader;

struct FidelityLimits {
  int64_t top = 8;                // of the most attended entries: those whose overlap counts
  double least_overlap = 0.8;
  double most_margin_drift = 0.5; // nats
  double most_kl = 0.05;          // nats
};

// Means over queries.
struct Fidelity {
  int64_t queries = 0;
  double overlap = 0;       // share of the full path's most attended entries that are among the packed one's
  double margin_drift = 0;  // |difference of the distances between the two best scores|, nats
  double kl = 0;            // of the packed distribution from the full one, by log-softmax

  // A value that is not a number does not pass, nor does nothing at all.
  bool passes(const FidelityLimits& limits) const;
  Fidelity& operator+=(const Fidelity& other);  // other queries
  void save(StateWriter* out) const;
  void load(StateReader* in);
};

// Adds one query. Scores in nats of the same entries, f32 [n]; at least two.
void add_fidelity(std::span<const float> full, std::span<const float> packed, int64_t top, Fidelity* fidelity);

}  // namespace smartkv
