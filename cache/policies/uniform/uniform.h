// Baselines: every page alike, K and V at fixed widths: k8v8, k8v4, k4v4.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_k8v8_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k8v4_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k4v4_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k3v3_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k2v2_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
