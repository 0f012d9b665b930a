#include "lab/commands/training_command.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "lab/commands/training_loader.h"
#include "server/commands/command.h"

namespace smartkv {

int run_training_command(const std::string& training, const nlohmann::json& options, bool json,
                         const std::function<void(const nlohmann::json& event)>& show_progress,
                         const std::function<void(const nlohmann::ordered_json& report)>& print_table) {
  const bool show = isatty(STDERR_FILENO) != 0;
  const nlohmann::ordered_json report =
      run_training(training_module_path(), training, options, show ? show_progress : nullptr);
  if (show) std::fprintf(stderr, "\r%60s\r", "");
  if (json) {
    std::cout << report.dump(2) << '\n';
  } else {
    print_table(report);
  }
  return kOk;
}

}  // namespace smartkv
