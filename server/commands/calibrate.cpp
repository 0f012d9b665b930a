#include "server/commands/calibrate.h"

#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include "engine/calibration/calibration.h"
#include "engine/log.h"
#include "engine/model/llama.h"
#include "engine/system_resources.h"
#include "engine/text/tokenizer.h"
#include "server/commands/command.h"
#include "server/commands/number_flag.h"
#include "server/commands/progress_line.h"

namespace smartkv {
namespace {

struct CalibrateArguments {
  std::string model;
  int threads = 0;
  bool force = false;
};

// Whether the weights fit into memory as f32, with half as much again for what is measured.
bool fit_as_f32(const Weights& weights) {
  int64_t bytes = 0;
  for (const std::string& name : weights.names()) {
    const std::optional<TensorView> tensor = weights.find(name);
    if (!tensor) continue;
    bytes += std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{4}, std::multiplies<>());
  }
  return bytes + bytes / 2 < available_bytes();
}

}  // namespace

std::filesystem::path calibrate_by_answers(const std::filesystem::path& model_path, int threads_wanted, bool force) {
  ModelOptions options;
  options.path = model_path;
  options.threads = threads_wanted > 0 ? threads_wanted : available_cores();
  const std::unique_ptr<Weights> weights = Weights::open(options.path);
  const std::filesystem::path file = calibration_file(*weights);
  const auto shape = [&] { return llama_cache_shape(weights->config(), options); };
  if (force) std::filesystem::remove(file);
  if (const auto known = find_sensitivity(file, shape()); known != nullptr && known->by_answers) {
    log_info(weights->config().name + " is calibrated already: " + file.string());
    return file;
  }
  options.weights = fit_as_f32(*weights) ? WeightFormat::kF32 : WeightFormat::kBf16;
  if (options.weights == WeightFormat::kBf16) {
    log_warning("too little memory for the weights as f32: answers are measured with bf16, which is less exact");
  }
  settle_context(weights->config().context_length, &options);
  ThreadPool threads(options.threads);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.path);
  ProgressLine progress;
  const auto loading = [&](double done) { progress.show(done / 10, "loading " + weights->config().name); };
  const std::unique_ptr<Model> model = load_llama(*weights, options, threads, loading);
  progress.show(0.1, "measuring channels");
  const auto measuring = [&](double done) { progress.show(0.2 + 0.8 * done, "measuring answers"); };
  calibrate(*model, *weights, *tokenizer, shape(), threads, file, true, measuring);
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

std::function<int()> setup_calibrate(CLI::App& app) {
  auto arguments = std::make_shared<CalibrateArguments>();
  app.add_option("--model", arguments->model, "GGUF file or Hugging Face folder")->required();
  add_number_flag(app, "--threads", arguments->threads, "CPU threads; 0 uses every core available to this process", 0,
                  64);
  app.add_flag("--force", arguments->force, "Measure again what is known already");
  app.footer(
      "The first start of serve measures the channels alone, in seconds; other backends and several processes do not.\n"
      "This command also measures what errors of each KV head do to the answers, with the weights as f32. The result "
      "is\n"
      "kept in $XDG_CACHE_HOME/smartkv/calibrations, or ~/.cache/smartkv/calibrations.\n"
      "Examples:\n  smartkv calibrate --model model.gguf");
  return [arguments] {
    const auto file = calibrate_by_answers(arguments->model, arguments->threads, arguments->force);
    return file.empty() ? kRuntimeError : kOk;
  };
}

}  // namespace smartkv
