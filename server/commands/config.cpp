// smartkv config: checks config files, and prints presets and the schema.
#include <filesystem>
#include <iostream>
#include <memory>

#include "engine/engine_options.h"
#include "hub/model_reference.h"
#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/config_schema.h"
#include "server/commands/presets.h"
#include "server/commands/sampling_defaults.h"

namespace smartkv {

namespace {

void check_file(const std::string& option, const std::filesystem::path& file) {
  if (file.empty() || std::filesystem::exists(file)) return;
  throw ConfigError(option + ": expected a file that exists, found \"" + file.string() + '"');
}

void check_model(const std::string& option, const std::filesystem::path& model) {
  if (!model_reference(model)) check_file(option, model);
}

void check_files(const EngineOptions& engine, const RunCheck& run) {
  run([&] { check_model("model", engine.model.path); });
  run([&] { check_model("draft_model", engine.draft_model); });
  for (const auto& one : engine.model.channel_worth) run([&] { check_file("channel_worth." + one.first, one.second); });
  for (const auto& one : engine.model.gates) run([&] { check_file("gates." + one.first, one.second); });
}

// Checks each field alone, so that one error does not hide another.
void check_sampling(const ServerOptions& options, const RunCheck& run) {
  if (!options.sampling.is_object()) {
    if (!options.sampling.is_null()) run([&] { sampling_defaults(options); });
    return;
  }
  for (const auto& [name, value] : options.sampling.items()) {
    ServerOptions one = options;
    one.sampling = {{name, value}};
    run([&] { sampling_defaults(one); });
  }
}

// Reports every error for which serve would refuse the file.
int check_file(const std::string& file) {
  ServerOptions options;
  ErrorList errors;
  errors.collect([&] { read_config_file(file, &options); });
  const RunCheck run = [&](const std::function<void()>& one) {
    try {
      one();
    } catch (const std::runtime_error& error) {
      errors.add(file + ": " + error.what());
    }
  };
  run([&] { complete(&options); });
  check_files(options.engine, run);
  check_engine_options(options.engine, run);
  check_sampling(options, run);
  for (const auto& http_check : http::file_checks(options.http)) run(http_check);
  errors.throw_if_any();
  std::cout << file << ": valid\n";
  return kOk;
}

int show_presets(const std::string& name) {
  if (name.empty()) {
    for (const ConfigPreset& preset : config_presets()) std::cout << preset.name() << '\n';
  } else {
    std::cout << find_preset(name).text();
  }
  return kOk;
}

constexpr const char* kConfigExamples = R"(Examples:
  smartkv config check my.json
  smartkv config preset low_memory > my.json
  smartkv config schema > smartkv.schema.json

Editors check and complete a config file that contains {"$schema": "smartkv.schema.json", ...}.)";

}  // namespace

std::function<int()> setup_config(CLI::App& app) {
  struct Arguments {
    std::string file, preset;
    std::function<int()> chosen;
  };
  auto arguments = std::make_shared<Arguments>();
  app.require_subcommand(1);
  app.footer(kConfigExamples);
  CLI::App* check_app = app.add_subcommand(
      "check", "Check a config file without loading the model. The parameters of policies are not checked");
  check_app->add_option("file", arguments->file, "Config file")->required();
  check_app->callback([a = arguments.get()] { a->chosen = [a] { return check_file(a->file); }; });
  CLI::App* preset_app = app.add_subcommand("preset", "Print the names of all presets, or the contents of one");
  preset_app->add_option("name", arguments->preset, "Preset: " + preset_names());
  preset_app->callback([a = arguments.get()] { a->chosen = [a] { return show_presets(a->preset); }; });
  app.add_subcommand("schema", "Print the JSON schema of config files")->callback([a = arguments.get()] {
    a->chosen = [] {
      std::cout << config_schema().dump(2) << '\n';
      return kOk;
    };
  });
  return [arguments] { return arguments->chosen(); };
}

}  // namespace smartkv
