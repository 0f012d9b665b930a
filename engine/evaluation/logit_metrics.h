// Distances between two models' opinions about the next token.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace smartkv {

// Turns a row of logits into log probabilities, in place. Throws SamplingError where one is not finite.
void log_softmax(std::span<float> row);

// The five most likely tokens, best first; the lower index wins a tie.
using TopTokens = std::array<int64_t, 5>;
TopTokens top_tokens(std::span<const float> row);

// KL(reference || candidate) in nats of rows of log probabilities; exactly 0 for equal rows. `probabilities`:
// exp(reference).
double kl_divergence(std::span<const float> reference, std::span<const float> probabilities,
                     std::span<const float> candidate);

}  // namespace smartkv
