// Baselines: K and V at fixed widths, from 8 bits (k8v8) to 2 bits (k2v2), in every page except for the first, which
// stays in 8 bits.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_uniform_policy(int k_bits, int v_bits, const PolicyContext& context,
                                                   const nlohmann::json& parameters);
template <int k_bits, int v_bits>
std::unique_ptr<KvCachePolicy> make_uniform_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make_uniform_policy(k_bits, v_bits, context, parameters);
}

}  // namespace smartkv
