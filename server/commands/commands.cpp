#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/parallel/rank_processes.h"
#include "engine/parallel/tensor_parallel.h"
#include "server/commands/command.h"
#include "server/commands/hub_models.h"
#include "server/commands/inspect.h"
#include "server/commands/nearest.h"
#include "server/commands/options.h"
#include "server/openai/error.h"
#include "server/version.h"

namespace smartkv {

namespace {

constexpr const char* kProgramExamples = R"(Examples:
  smartkv serve --config configs/default.json
  smartkv serve --model model.gguf --host 0.0.0.0 --port 8000 --api-key secret
  smartkv health --port 8000
  smartkv chat --model model.gguf
  smartkv generate --model model.gguf --temperature 0 --prompt "What is the capital of France? Answer in one sentence."
  smartkv bench --model model.gguf --limits
  smartkv eval divergence --model model.gguf --text book.txt --kv-cache streaming@0.25
  smartkv train-gate --model model.gguf --text books.txt --out gate.safetensors
  smartkv train-draft --model model.gguf --prompts prompts.txt --out draft.safetensors
  smartkv config check my.json
  smartkv plan --model model.gguf --context 8192 --concurrency 16 --memory 4GiB
  smartkv quantize model.gguf model-int4.gguf --weights int4
  smartkv inspect model.gguf

Each command explains its options: smartkv serve --help.
Exit codes: 0 success, 1 failure while running, 2 wrong usage.)";

std::function<int()> setup_inspect(CLI::App& app) {
  struct Arguments {
    std::string model;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  app.add_option("model", arguments->model, "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  app.add_flag("--json", arguments->json, "Print one JSON object");
  app.footer("Examples:\n  smartkv inspect model.gguf\n  smartkv inspect folder/ --json");
  return [arguments] { return inspect(find_model(arguments->model), arguments->json, std::cout); };
}

// Prints the nearest known option for the first unknown one.
void suggest_option(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    for (const std::string& unknown : command->remaining()) {
      if (!unknown.starts_with("--") || names.empty()) continue;
      std::cerr << unknown << ": the nearest known option is " << nearest(unknown.substr(0, unknown.find('=')), names)
                << '\n';
      return;
    }
  }
}

// Makes all options of the command that take floats refuse NaN and infinities, which CLI11 reads as numbers.
void require_finite_numbers(CLI::App& app) {
  const auto finite = [](const std::string& text) {
    double number = 0;
    const bool other = !CLI::detail::lexical_cast(text, number);  // not a number; CLI11 reports that itself
    return other || std::isfinite(number) ? std::string() : "expected a finite number, found " + text;
  };
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("FLOAT")) option->check(finite);
  }
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) require_finite_numbers(*sub);
}

// While the object lives, a failed write to standard output throws, and so becomes an error of the command.
class CheckedOutput {
 public:
  CheckedOutput() { std::cout.exceptions(std::ios::badbit | std::ios::failbit); }
  ~CheckedOutput() {
    std::cerr.tie(errors_flush_);
    std::cout.exceptions(std::ios::goodbit);
    std::cout.clear();
    std::clearerr(stdout);
  }
  CheckedOutput(const CheckedOutput&) = delete;
  CheckedOutput& operator=(const CheckedOutput&) = delete;

  static void flush() {
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) std::cout.setstate(std::ios::badbit);
  }

 private:
  // An error message must not flush standard output, which would throw again.
  std::ostream* const errors_flush_ = std::cerr.tie(nullptr);
};

int run(const std::function<int()>& command) {
  const CheckedOutput output;
  try {
    const int code = command();
    CheckedOutput::flush();
    return code;
  } catch (const std::ios_base::failure& error) {
    std::cerr << "smartkv: " << (std::cout ? error.what() : "standard output cannot be written") << '\n';
    return kRuntimeError;
  } catch (const ConfigError& error) {
    std::cerr << "smartkv: " << error.what() << '\n';
    return kUsageError;
  } catch (const openai::ApiError& error) {
    std::cerr << "smartkv: " << error.what() << '\n';
    return error.status == 400 ? kUsageError : kRuntimeError;
  } catch (const RequestError& error) {
    std::cerr << "smartkv: " << error.what() << '\n';
    return error.kind == RequestError::Kind::kInvalid ? kUsageError : kRuntimeError;
  } catch (const std::exception& error) {
    std::cerr << "smartkv: " << error.what() << '\n';
    return kRuntimeError;
  }
}

}  // namespace

std::vector<Command>& commands() {
  static std::vector<Command> table = {
      {"serve", "Serve a model over HTTP with OpenAI's API", setup_serve},
      {"health", "Ask a server whether it is ready; the exit code is the answer", setup_health},
      {"generate", "Answer one prompt and print the text", setup_generate},
      {"chat", "Chat with a model in the terminal", setup_chat},
      {"config", "Check a config file; show the presets and the schema of config files", setup_config},
      {"plan", "Show which KV-cache policies fit a number of sequences into a given memory", setup_plan},
      {"quantize", "Write a copy of a model with integer weights, which loads faster", setup_quantize},
      {"calibrate", "Measure how much each channel of a model's KV cache matters, for the policy calibrated",
       setup_calibrate},
      {"inspect", "Show the contents of a model file", setup_inspect},
      {"pull", "Fetch a model from the Hugging Face Hub", setup_pull},
      {"models", "List the models that were fetched", setup_models},
      {"rm", "Remove a model that was fetched", setup_rm},
      {"completions", "Print a completion script for bash, fish or zsh", setup_completions},
  };
  return table;
}

int run_command_line(int argc, const char* const* argv) {
  // An internal command: the other processes of --tensor-parallel run it.
  if (argc > 1 && argv[1] == std::string_view(kRankCommand)) return run_rank({argv + 2, argv + argc});
  CLI::App app("SmartKV serves LLaMA-family models with a KV-cache policy per request.", "smartkv");
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(1);
  app.footer(kProgramExamples);
  std::function<int()> chosen;
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    const std::function<int()> action = command.setup(*sub);
    sub->group(std::string(command.group));
    require_finite_numbers(*sub);
    sub->callback([&chosen, action] { chosen = action; });
  }
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end()) {
    std::cerr << "smartkv: unknown command \"" << argv[1] << "\"; the nearest known command is \""
              << nearest(argv[1], names) << "\"\n";
    return kUsageError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return run([&] {  // CLI11 throws for --help and --version, too
      const int code = app.exit(error);
      if (code != 0) suggest_option(app);
      return code == 0 ? kOk : kUsageError;
    });
  }
  return run(chosen);
}

}  // namespace smartkv
