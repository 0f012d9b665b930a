// Baseline: slots go to tokens drawn at random, by a hash of layer, KV head and position.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_random_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
