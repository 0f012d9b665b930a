// Distances between two distributions of the next token.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace smartkv {

// Turns a row of logits into log probabilities, in place. Throws SamplingError if a logit is NaN or +inf, or all are
// -inf.
void log_softmax(std::span<float> row);

using TopTokens = std::array<int64_t, 5>;
// Returns the five most likely tokens, best first. The lower index wins a tie.
TopTokens top_tokens(std::span<const float> row);

// Returns KL(reference || candidate) in nats, for rows of log probabilities. It is exactly 0 for equal rows.
// `probabilities` is exp(reference).
double kl_divergence(std::span<const float> reference, std::span<const float> probabilities,
                     std::span<const float> candidate);

}  // namespace smartkv
