// Named policy settings, for requests such as "kv_cache": "balanced".
#pragma once

#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

struct PolicyPreset {
  std::string_view name;
  std::string_view summary;           // one line for --help
  nlohmann::json spec;                // {"policy": ..., parameters...}
  nlohmann::json stand_in = nullptr;  // for a model that was not calibrated; null if `spec` needs no calibration
};

const std::vector<PolicyPreset>& policy_presets();

}  // namespace smartkv
