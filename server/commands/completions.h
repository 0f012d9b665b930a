// Completion scripts for shells. They are generated from the commands that the parser knows and from the option table.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace smartkv {

// Returns the script for "bash", "zsh" or "fish". `app` is the whole program with all its commands. Throws ConfigError
// for another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace smartkv
