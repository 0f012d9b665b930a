// The JSON schema of config files (draft 2020-12), for editors: made from the table of options.
#pragma once

#include <nlohmann/json.hpp>

namespace smartkv {

nlohmann::ordered_json config_schema();

}  // namespace smartkv
