// Which channels of a KV head's keys matter to its scores, and whether that is settled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// A score is a sum over RoPE's pairs (j, j + head_dim / 2). What pair j adds to its variance is at most about
// E[q_j^2] E[k_j^2] + E[q_j+h^2] E[k_j+h^2]; positions turn one half of a pair into the other, so they go together.
// q2, k2: f32 [head_dim], means of squares. Returns the worth of each pair, f32 [head_dim / 2].
std::vector<float> query_key_worth(std::span<const float> q2, std::span<const float> k2);

// The same by the keys' size alone: sqrt(E[k_j^2] + E[k_j+h^2]).
std::vector<float> magnitude_worth(std::span<const float> k2);

// The channels of the `channels` / 2 worthiest pairs, then the others, each in rising order: a page's channel_order.
// channels: a multiple of 4.
std::vector<uint8_t> channel_order(std::span<const float> worth, int64_t channels);

// The `channels` worthiest single channels, then the others, each in rising order. worth: f32 [head_dim].
std::vector<uint8_t> single_channel_order(std::span<const float> worth, int64_t channels);

// Returns the worth of the first `channels` of `before`, an order of [head_dim], as a share of what the best `channels` are worth now.
// worth: f32 [head_dim] of channels, or [head_dim / 2] of RoPE pairs. 1 if nothing is worth anything.
double retained(std::span<const uint8_t> before, std::span<const float> worth, int64_t channels);

}  // namespace smartkv
