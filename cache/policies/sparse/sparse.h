// Every token is kept as it is; each query reads the tokens that promise most: kernels/sparse_attention.h.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_sparse_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
