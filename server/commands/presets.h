// Configs that are built into the program, for `serve --preset NAME`: the files configs/NAME.json, except the default.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands/options.h"

namespace smartkv {

// A config file that is built into the program.
struct ConfigPreset {
  std::string_view file;  // "laptop.json"
  std::span<const std::byte> bytes;

  std::string name() const { return std::string(file.substr(0, file.find('.'))); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

std::vector<ConfigPreset> config_presets();
std::string preset_names();  // "laptop, long_context, ..."

// Returns a preset. Throws ConfigError for an unknown name.
ConfigPreset find_preset(const std::string& name);
// Sets the options of a preset. Throws ConfigError.
void apply_preset(const std::string& name, ServerOptions* options);

}  // namespace smartkv
