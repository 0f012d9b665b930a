#include "lab/commands/training_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "lab/commands/training_loader.h"
#include "server/commands/command.h"
#include "server/commands/hub_models.h"

namespace smartkv {

nlohmann::json& TrainingCommand::option(const std::string& flag) {
  std::string name = flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return options_[name];
}

void TrainingCommand::add_threads_and_json() {
  whole("--threads", 0, "CPU threads; 0 uses every core available to this process", 0, 64);
  app_.add_flag("--json", json_, "Print JSON");
}

int TrainingCommand::run(const std::string& training,
                         const std::function<void(const nlohmann::json& event)>& show_progress,
                         const std::function<void(const nlohmann::ordered_json& report)>& print_table) const {
  const bool show = isatty(STDERR_FILENO) != 0;
  nlohmann::json options = options_;
  options["model"] = find_model(options.at("model").get<std::string>()).string();
  const nlohmann::ordered_json report =
      run_training(training_module_path(), training, options, show ? show_progress : nullptr);
  if (show) std::fprintf(stderr, "\r%60s\r", "");
  if (json_) {
    std::cout << report.dump(2) << '\n';
  } else {
    print_table(report);
  }
  return kOk;
}

}  // namespace smartkv
