// Flags that take a number within limits.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace smartkv {

// Adds a flag for a number, or for a list of numbers, from `least` to `most`. `value` holds the default, which --help
// shows, and must outlive the parsing of `app`.
template <typename T, typename Number>
CLI::Option* add_number_flag(CLI::App& app, const std::string& flag, T& value, const std::string& help, Number least,
                             Number most) {
  return app.add_option(flag, value, help)->check(CLI::Range(least, most))->capture_default_str();
}

}  // namespace smartkv
