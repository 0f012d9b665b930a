// Drawing tokens where the logits are, on a device.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/token_noise.h"

namespace smartkv::kernels {

// A token that a sequence has seen, and how often its output has it; 0: in the prompt only.
struct SeenToken {
  int32_t token;
  int32_t output_count;
};

// What was wrong with the logits, after their edits: NaN or +inf, of `token`; nothing but -inf.
enum class DrawError : int32_t { kNone, kNan, kInfinity, kAllMasked };

struct DrawnToken {
  int32_t token = -1;
  DrawError error = DrawError::kNone;
};

// A row of logits and how a token is drawn from it: engine/sampling/sampler.h's steps, in their order. Spans are the host's.
struct TokenDraw {
  float* logits = nullptr;  // f32 [vocabulary], in memory of KvBackend::allocate(); overwritten
  int64_t vocabulary = 0;   // at most TokenDrawer::kMostTokens
  std::span<const std::pair<int32_t, float>> logit_bias = {};  // ascending by token; of equal ones each is added, in order
  std::span<const SeenToken> seen = {};                        // each token once; empty: no penalties
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::span<const int32_t> forbidden = {};
  std::span<const uint32_t> allowed = {};  // bit i % 32 of word i / 32 is token i; empty: all
  bool greedy = false;                     // if so, nothing of what follows
  float scale = 1;                         // 1 / temperature
  float min_p_offset = 0;                  // of the least logit that min_p leaves, from the largest: -inf: it is off
  int32_t top_k = 0;                       // 0: off
  float top_p = 1;
  TokenNoise noise;

  DrawnToken drawn;
};

class TokenDrawer {
 public:
  static constexpr int64_t kMostTokens = (int64_t{1} << 20) - 1;  // of a vocabulary

  virtual ~TokenDrawer() = default;
  // Fills in `drawn` of each: the token that the host's Sampler draws from these logits.
  virtual void draw(std::span<TokenDraw* const> draws) = 0;
};

}  // namespace smartkv::kernels
