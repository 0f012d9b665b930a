// The noise that a token is drawn with. Drawing is a race: token i arrives after its noise divided by its weight, and
// the first token to arrive is drawn. The noise is exponential, so the quotient has rate weight_i, and token i is first
// with probability weight_i / sum of weights. If two similar distributions are drawn from with the same noise, they
// mostly give the same token. So a draft draws with the noise that its target will draw with.
//
// Sources:
//  - The race is the Gumbel-max trick (Maddison et al. 2014), in logarithms.
//  - The coupling is from Daliri et al. 2024. It gives P(same token) = sum over i of 1 / sum over j of max(p_j / p_i,
//    q_j / q_i) for distributions p and q.
#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace smartkv {

// Independent exponential numbers of mean 1, one per token of the vocabulary, at one output position of one choice.
// They are functions of these counters and the token, so every caller gets the same numbers, in any order.
//
// Most of them are never computed. The least number of a block of n tokens is exponential with mean 1 / n, and each of
// the tokens has it with the same probability. The excess of the other numbers over it is again exponential with mean
// 1, because such numbers have no memory (Renyi 1953). So the least number of a block is computed first, and tells
// whether the block can matter.
class TokenNoise {
 public:
  static constexpr int64_t kBlockTokens = 64;

  struct Block {
    double least;
    int32_t token;  // The token with this noise. In the last block it may be beyond the vocabulary.
  };

  TokenNoise() = default;
  TokenNoise(uint64_t seed, uint32_t choice, uint64_t position) : key_(detail::position_key(seed, choice, position)) {}

  // Returns the least noise of tokens [index * kBlockTokens, (index + 1) * kBlockTokens).
  SMARTKV_HOST_DEVICE Block block(int64_t index) const {
    const uint64_t bits = detail::mix64(key_ ^ (kBlockStream | static_cast<uint64_t>(index)));
    const auto slot = static_cast<int64_t>(bits % kBlockTokens);  // Bits that exponential() does not use.
    return {exponential(bits) / kBlockTokens, static_cast<int32_t>(index * kBlockTokens + slot)};
  }
  // Returns the noise of `token`. REQUIRES: `block` is the block of the token.
  SMARTKV_HOST_DEVICE double of(int32_t token, const Block& block) const {
    if (token == block.token) return block.least;
    return block.least + exponential(detail::mix64(key_ ^ static_cast<uint64_t>(token)));
  }

 private:
  static constexpr uint64_t kBlockStream = uint64_t{1} << 32;  // Above all tokens.

  uint64_t key_ = 0;
};

}  // namespace smartkv
