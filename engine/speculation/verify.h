// Whether a drafted token stands: rejection sampling, so that the output has the target's distribution exactly.
// Source: Leviathan et al. 2023; Chen et al. 2023.
#pragma once

#include "engine/sampling/sampler.h"

namespace smartkv {

struct Verdict {
  TokenId token = 0;      // of the output: the draft, or what replaces it
  bool accepted = false;  // token is the draft
};

// A token that was not drawn but looked up (or the likeliest: greedy). Its replacement is the very token that plain
// decoding draws with the same u, so a seeded output does not depend on such drafts at all.
Verdict verify_fixed(const Distribution& target, TokenId draft, double u);

// A token drawn from `drafter`: stands with probability min(1, target / drafter), otherwise one is drawn from what the
// target has beyond the drafter. The two numbers are independent of each other and of the draft's.
Verdict verify_drawn(const Distribution& target, const Distribution& drafter, TokenId draft, double u_accept,
                     double u_residual);

}  // namespace smartkv
