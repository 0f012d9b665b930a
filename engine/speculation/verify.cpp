#include "engine/speculation/verify.h"

#include <algorithm>

namespace smartkv {
namespace {

// Calls take(token, max(0, target - drafter)) in order of tokens until it returns false.
template <typename Take>
void scan_residual(const Distribution& target, const Distribution& drafter, Take take) {
  const std::span<const float> weights = target.weights();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    const TokenId token = target.tokens().empty() ? static_cast<TokenId>(i) : target.tokens()[i];
    const double excess = weights[i] / target.total() - drafter.probability(token);
    if (excess > 0 && !take(token, excess)) return;
  }
}

}  // namespace

Verdict verify_fixed(const Distribution& target, TokenId draft, double u) {
  const TokenId token = target.draw(u);
  return {token, token == draft};
}

Verdict verify_drawn(const Distribution& target, const Distribution& drafter, TokenId draft, double u_accept,
                     double u_residual) {
  if (u_accept * drafter.probability(draft) < target.probability(draft)) return {draft, true};
  double mass = 0;
  scan_residual(target, drafter, [&](TokenId, double excess) {
    mass += excess;
    return true;
  });
  // Rounding alone can reject where the two agree: then the residual is empty, and the target itself is right.
  if (mass <= 0) return {target.draw(u_residual), false};
  double left = u_residual * mass;
  TokenId token = draft;
  scan_residual(target, drafter, [&](TokenId candidate, double excess) {
    token = candidate;
    left -= excess;
    return left >= 0;
  });
  return {token, false};
}

}  // namespace smartkv
