// Baseline: keeps the sinks and a window of recent tokens (StreamingLLM, Xiao et al. 2024).
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_streaming_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
