// Baseline: slots go to the tokens that the last queries attend to (SnapKV, Li et al. 2024).
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_snapkv_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
