// The sparse policy: keeps every token, and each query reads only the most promising ones (kernels/sparse_attention.h).
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_sparse_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
