// libsmartkv_training.so, the module with the training commands. lab/commands/training_loader.h loads it.
#include "lab/commands/training_loader.h"

#include <map>
#include <stdexcept>
#include <string>

#include "lab/training/training_commands.h"

namespace smartkv {
namespace {

using Train = nlohmann::ordered_json (*)(const nlohmann::json& options, const TrainingEvent& event);

const std::map<std::string, Train>& trainings() {
  static const std::map<std::string, Train> table = {{"train-draft", train_draft}, {"train-gate", train_gate}};
  return table;
}

nlohmann::ordered_json train(const std::string& command, const std::string& options, const TrainingEvent& event) {
  const auto found = trainings().find(command);
  if (found == trainings().end()) throw std::invalid_argument("this module has no such command");
  return found->second(nlohmann::json::parse(options), event);
}

}  // namespace
}  // namespace smartkv

extern "C" __attribute__((visibility("default"))) int smartkv_train(const char* command, const char* options,
                                                                    void (*event)(void* user, const char* json),
                                                                    void* user) {
  const auto send = [&](const nlohmann::ordered_json& json) { event(user, json.dump().c_str()); };
  try {
    send({{"event", "report"}, {"report", smartkv::train(command, options, send)}});
    return 0;
  } catch (const std::exception& error) {
    send({{"event", "error"}, {"message", error.what()}});
    return 1;
  }
}
