// Completion scripts for shells, made of the commands as the parser knows them and of the option table.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace smartkv {

// `app`: the program, with all its commands. Throws ConfigError for another shell than bash or zsh.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace smartkv
