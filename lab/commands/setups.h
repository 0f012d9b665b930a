// The commands of the lab, one file each. To add one, add a file, a line here and a row in lab_commands.cpp.
#pragma once

#include <functional>
#include <string_view>

#include <CLI/CLI.hpp>

namespace smartkv {

inline constexpr std::string_view kLabGroup = "Measuring and training";

std::function<int()> setup_bench(CLI::App& app);
std::function<int()> setup_eval(CLI::App& app);
std::function<int()> setup_run_suite(CLI::App& app);
std::function<int()> setup_train_probe(CLI::App& app);
std::function<int()> setup_train_gate(CLI::App& app);
std::function<int()> setup_train_draft(CLI::App& app);

}  // namespace smartkv
