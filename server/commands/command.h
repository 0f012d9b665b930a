// The commands of the program. To add one that users need, add a file and a row in commands.cpp.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace smartkv {

// Exit codes.
inline constexpr int kOk = 0;
inline constexpr int kRuntimeError = 1;
inline constexpr int kUsageError = 2;

// A row of the table of commands.
struct Command {
  std::string_view name;
  std::string_view summary;
  // Adds the command's options to `app`. Returns the function to run once they are parsed, which returns the exit code.
  std::function<int()> (*setup)(CLI::App& app);
  std::string_view group = "Commands";  // heading in --help
};

// The table of commands. main() appends those of lab/.
std::vector<Command>& commands();

std::function<int()> setup_serve(CLI::App& app);
std::function<int()> setup_health(CLI::App& app);
std::function<int()> setup_generate(CLI::App& app);
std::function<int()> setup_chat(CLI::App& app);
std::function<int()> setup_config(CLI::App& app);
std::function<int()> setup_plan(CLI::App& app);
std::function<int()> setup_quantize(CLI::App& app);
std::function<int()> setup_calibrate(CLI::App& app);
std::function<int()> setup_completions(CLI::App& app);

// Parses the command line and runs the command. Returns the exit code. Errors go to stderr.
int run_command_line(int argc, const char* const* argv);

}  // namespace smartkv
