// smartkv health: asks a server whether it is ready, or with --live whether its process works.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace smartkv {

std::function<int()> setup_health(CLI::App& app);

}  // namespace smartkv
