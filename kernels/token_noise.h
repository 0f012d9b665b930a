// The noise that a token is drawn with. Drawing is a race: token i arrives after its noise divided by its weight, and
// the first one is the token. An exponential number over a weight has that weight for its rate, so i is first with
// probability weight_i / sum of weights. Drawn this way from two distributions that resemble each other, the same noise
// mostly gives the same token, which is why a draft draws with the noise that its target will draw with.
// Sources: the race: the Gumbel-max trick (Maddison et al. 2014), in logarithms; the coupling: Daliri et al. 2024, which
// gives P(same token) = sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i) for distributions p and q.
#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace smartkv {

// Independent exponential numbers of mean 1, one per token of the vocabulary, at one output position of one choice:
// functions of these counters and the token, so the same for whoever asks, whenever, and in whatever order.
//
// Most are never computed. Of the n tokens of a block the least number is exponential of mean 1 / n, any of them has it
// with the same probability, and what the others have beyond it is again exponential of mean 1, since such numbers have
// no memory (Renyi 1953). So a block's least number comes first, and tells whether the block can matter.
class TokenNoise {
 public:
  static constexpr int64_t kBlockTokens = 64;

  struct Block {
    double least;
    int32_t token;  // whose it is; in the last block perhaps one beyond the vocabulary
  };

  TokenNoise() = default;
  TokenNoise(uint64_t seed, uint32_t choice, uint64_t position) : key_(detail::position_key(seed, choice, position)) {}

  // Of the tokens [index * kBlockTokens, (index + 1) * kBlockTokens).
  SMARTKV_HOST_DEVICE Block block(int64_t index) const {
    const uint64_t bits = detail::mix64(key_ ^ (kBlockStream | static_cast<uint64_t>(index)));
    const auto slot = static_cast<int64_t>(bits % kBlockTokens);  // bits that exponential() leaves unused
    return {exponential(bits) / kBlockTokens, static_cast<int32_t>(index * kBlockTokens + slot)};
  }
  // `block`: the token's.
  SMARTKV_HOST_DEVICE double of(int32_t token, const Block& block) const {
    if (token == block.token) return block.least;
    return block.least + exponential(detail::mix64(key_ ^ static_cast<uint64_t>(token)));
  }

 private:
  static constexpr uint64_t kBlockStream = uint64_t{1} << 32;  // beyond every token

  uint64_t key_ = 0;
};

}  // namespace smartkv
