// Flags whose values are the names of an enum's values.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/model/model_options.h"

namespace smartkv {

// Adds such a flag, which stores in `value`. `value` holds the default and must outlive the parsing of `app`.
// `allowed`: the values that the flag takes; empty for all.
template <NamedEnum E>
CLI::Option* add_enum_flag(CLI::App& app, const std::string& flag, E& value, const std::string& help,
                           const std::vector<E>& allowed = {}) {
  std::vector<std::string> names;
  if (allowed.empty()) names.assign(kEnumNames<E>.begin(), kEnumNames<E>.end());
  for (const E one : allowed) names.emplace_back(name(one));
  const auto store = [&value](const std::string& text) { value = from_name<E>(text).value(); };
  return app.add_option_function<std::string>(flag, store, help)
      ->check(CLI::IsMember(names))
      ->default_str(std::string(name(value)));
}

}  // namespace smartkv
