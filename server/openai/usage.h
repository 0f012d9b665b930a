// The `usage` and `timings` members of responses.
#pragma once

#include "cache/tiers.h"
#include "server/openai/error.h"

namespace smartkv::openai {

// Returns the shares by tier, rounded to multiples of `unit`, because means over KV heads have long fractions. Tiers
// that hold nothing are left out.
Json tiers_json(const TierShares& tiers, double unit);
constexpr double kTierTokens = 0x1p-3;  // unit for numbers of tokens

// Returns what was found of a prompt in the prefix cache, and why not more.
Json prefix_json(const RequestUsage& usage);
Json usage_json(const RequestUsage& usage);
Json timings_json(const RequestUsage& usage);  // in milliseconds and tokens per second

}  // namespace smartkv::openai
