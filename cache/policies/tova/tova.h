// Baseline: slots go to the tokens that the last query attends to (TOVA, Oren et al. 2024).
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_tova_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
