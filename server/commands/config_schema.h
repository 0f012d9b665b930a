// The JSON schema (draft 2020-12) of config files, for editors. It is generated from the table of options.
#pragma once

#include <nlohmann/json.hpp>

namespace smartkv {

nlohmann::ordered_json config_schema();

}  // namespace smartkv
