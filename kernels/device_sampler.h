// The device sampler: draws tokens on the device that holds the logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/token_noise.h"

namespace smartkv::kernels {

// A token that a sequence has seen. output_count: how often its output has the token, 0 if only the prompt has it.
struct SeenToken {
  int32_t token;
  int32_t output_count;
};

// An error in the logits after their edits: `token` has NaN, `token` has +inf, or all logits are -inf.
enum class DrawError : int32_t { kNone, kNan, kInfinity, kAllMasked };

struct DrawnToken {
  int32_t token = -1;
  DrawError error = DrawError::kNone;
};

// A row of logits and how to draw a token from it, by the steps of engine/sampling/sampler.h in their order. Spans are
// in host memory.
struct DeviceSample {
  float* logits = nullptr;  // f32 [vocabulary], in memory of KvBackend::allocate(); overwritten
  int64_t vocabulary = 0;   // at most DeviceSampler::kMostTokens
  // Ascending by token. The biases of equal tokens are all added, in order.
  std::span<const std::pair<int32_t, float>> logit_bias = {};
  std::span<const SeenToken> seen = {};  // Each token once. Empty: no penalties.
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::span<const int32_t> forbidden = {};
  std::span<const uint32_t> allowed = {};  // Bit i % 32 of word i / 32 is token i. Empty: all tokens.
  bool greedy = false;                     // If true, the parameters below are ignored.
  float scale = 1;                         // 1 / temperature
  float min_p_offset = 0;                  // From the largest logit to the least that min_p keeps. -inf: min_p is off.
  int32_t top_k = 0;                       // 0: off
  float top_p = 1;
  TokenNoise noise;

  // The result.
  DrawnToken drawn;
};

// Draws tokens from logits in the memory of a KvBackend.
class DeviceSampler {
 public:
  static constexpr int64_t kMostTokens = (int64_t{1} << 20) - 1;  // The largest vocabulary.

  virtual ~DeviceSampler() = default;
  // Fills in `drawn` of each draw with the token that the host's Sampler draws from these logits.
  virtual void draw(std::span<DeviceSample* const> draws) = 0;
};

}  // namespace smartkv::kernels
