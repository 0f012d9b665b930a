// Measures how far a query's distribution over packed keys is from its distribution over full ones.
#pragma once

#include <cstdint>
#include <span>

namespace smartkv {

class StateWriter;  // cache/state_io.h
class StateReader;

struct FidelityLimits {
  int64_t top = 8;  // Number of highest scores whose entries are compared.
  double least_overlap = 0.8;
  double most_margin_drift = 0.5;  // Nats.
  double most_kl = 0.05;           // Nats.
};

// Means over queries.
struct Fidelity {
  int64_t queries = 0;
  // Share of the full keys' `top` best entries that are also among the packed keys' best.
  double overlap = 0;
  // |difference between the two margins|, in nats. The margin is the distance between the two best scores.
  double margin_drift = 0;
  // KL divergence of the packed distribution from the full one, in nats, by log-softmax.
  double kl = 0;

  // Returns whether all limits hold. Never true if a value is NaN or if there were no queries.
  bool passes(const FidelityLimits& limits) const;
  Fidelity& operator+=(const Fidelity& other);  // Adds the means over other queries.
  void save(StateWriter* out) const;
  void load(StateReader* in);
};

// Adds one query. full, packed: f32 [n], scores of the same entries in nats; n >= 2.
void add_fidelity(std::span<const float> full, std::span<const float> packed, int64_t top, Fidelity* fidelity);
// Adds several queries. full, packed: f32 [queries, n].
void add_fidelities(std::span<const float> full, std::span<const float> packed, int64_t n, int64_t top,
                    Fidelity* fidelity);

}  // namespace smartkv
