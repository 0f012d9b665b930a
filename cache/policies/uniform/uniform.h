// Baselines: K and V at fixed widths, from 8 bits (k8v8) to 2 bits (k2v2), in every page except for the first, which
// stays in 8 bits.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_k8v8_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k8v4_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k4v4_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k3v3_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::unique_ptr<KvCachePolicy> make_k2v2_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
