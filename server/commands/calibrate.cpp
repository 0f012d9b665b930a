#include <filesystem>
#include <iostream>
#include <memory>

#include "engine/calibration/calibration.h"
#include "engine/model/llama.h"
#include "engine/system_resources.h"
#include "engine/text/tokenizer.h"
#include "server/commands/command.h"
#include "server/commands/number_flag.h"

namespace smartkv {
namespace {

struct CalibrateArguments {
  std::string model;
  int threads = 0;
  bool force = false;
};

int run(const CalibrateArguments& arguments) {
  ModelOptions options;
  options.path = arguments.model;
  options.threads = arguments.threads > 0 ? arguments.threads : available_cores();
  const std::unique_ptr<Weights> weights = Weights::open(options.path);
  const std::filesystem::path file = calibration_file(*weights);
  const CacheShape shape = llama_cache_shape(weights->config(), options);
  if (arguments.force) std::filesystem::remove(file);
  if (find_sensitivity(file, shape) != nullptr) {
    std::cout << weights->config().name << " is calibrated already: " << file.string() << " (--force measures again)\n";
    return kOk;
  }
  settle_context(weights->config().context_length, &options);
  ThreadPool threads(options.threads);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.path);
  const std::unique_ptr<Model> model = load_llama(*weights, options, threads);
  calibrate(*model, *weights, *tokenizer, shape, threads, file);
  return std::filesystem::exists(file) ? kOk : kRuntimeError;
}

}  // namespace

std::function<int()> setup_calibrate(CLI::App& app) {
  auto arguments = std::make_shared<CalibrateArguments>();
  app.add_option("--model", arguments->model, "GGUF file or Hugging Face folder")->required();
  add_number_flag(app, "--threads", arguments->threads, "CPU threads; 0 uses every core available to this process", 0,
                  64);
  app.add_flag("--force", arguments->force, "Measure again what is known already");
  app.footer(
      "serve does the same at its first start, except with other backends and several processes. The result is kept\n"
      "in $XDG_CACHE_HOME/smartkv/calibrations, or ~/.cache/smartkv/calibrations.\n"
      "Examples:\n  smartkv calibrate --model model.gguf");
  return [arguments] { return run(*arguments); };
}

}  // namespace smartkv
