// The policy `calibrated`: keeps every token, in pages whose widths a table of the model gives (sensitivity.h).
#pragma once

#include <memory>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "cache/policy.h"

namespace smartkv {

constexpr std::string_view kCalibratedPolicy = "calibrated";

std::unique_ptr<KvCachePolicy> make_calibrated_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
