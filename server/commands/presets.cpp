#include "server/commands/presets.h"

namespace smartkv {

std::string preset_names() {
  std::string names;
  for (const ConfigPreset& preset : config_presets()) names += (names.empty() ? "" : ", ") + preset.name();
  return names;
}

ConfigPreset find_preset(const std::string& name) {
  for (const ConfigPreset& preset : config_presets()) {
    if (preset.name() == name) return preset;
  }
  throw ConfigError("--preset: expected one of " + preset_names() + ", found \"" + name + '"');
}

void apply_preset(const std::string& name, ServerOptions* options) {
  read_config(find_preset(name).text(), "preset " + name, options);
}

}  // namespace smartkv
