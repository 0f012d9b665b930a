// Selects the channels of a KV head's keys that matter to its attention scores, and says how stable the selection is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// Returns the worth of each RoPE pair, f32 [head_dim / 2]. q2, k2: f32 [head_dim], means of squares.
//
// A score is a sum over RoPE pairs (j, j + h), h = head_dim / 2. Pair j adds at most about E[q_j^2] E[k_j^2] +
// E[q_j+h^2] E[k_j+h^2] to its variance. The channels of a pair are kept or dropped together, because positions turn
// one half of a pair into the other.
std::vector<float> query_key_worth(std::span<const float> q2, std::span<const float> k2);

// Returns the worth of each RoPE pair by the size of the keys alone: sqrt(E[k_j^2] + E[k_j+h^2]).
std::vector<float> magnitude_worth(std::span<const float> k2);

// Returns a page's channel_order: the channels of the `channels` / 2 pairs of highest worth, then the others, each in
// rising order. REQUIRES: `channels` is a multiple of 4.
std::vector<uint8_t> channel_order(std::span<const float> worth, int64_t channels);

// Returns the `channels` single channels of highest worth, then the others, each in rising order. worth: f32
// [head_dim].
std::vector<uint8_t> single_channel_order(std::span<const float> worth, int64_t channels);

// Returns the worth of the first `channels` channels of `before`, an order of [head_dim], as a share of the worth of
// the best `channels` channels. worth: f32 [head_dim] by channel, or [head_dim / 2] by RoPE pair. Returns 1 if no
// channel has any worth.
double retained(std::span<const uint8_t> before, std::span<const float> worth, int64_t channels);

}  // namespace smartkv
