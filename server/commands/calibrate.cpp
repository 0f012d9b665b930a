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
#include "server/commands/hub_models.h"
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
  options.path = find_model(model_path);
  options.threads = threads_wanted > 0 ? threads_wanted : available_cores();
  const std::unique_ptr<Weights> weights = Weights::open(options.path);
  const std::filesystem::path file = calibration_file(*weights);
  const auto shape = [&] { return llama_cache_shape(weights->config(), options); };
  if (shape().n_layers == 0) {
    throw ModelError(weights->config().name + ": expected a layer with full attention to calibrate, found a " +
                     "sliding_window of " + std::to_string(weights->config().sliding_window) + " tokens in all layers");
  }
  if (force) std::filesystem::remove(file);
  auto known = find_sensitivity(file, shape());
  if (known != nullptr && known->by_answers && !known->frontier.empty()) {
    log_info(weights->config().name + " is calibrated already: " + file.string());
    return file;
  }
  settle_context(weights->config().context_length, &options);
  ThreadPool threads(options.threads);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.path);
  ProgressLine progress;
  const auto part = [&](double from, double to, const std::string& what) {
    return [&progress, from, to, what](double done) { progress.show(from + (to - from) * done, what); };
  };
  const auto load = [&](WeightFormat format, double from, double to) {
    options.weights = format;
    return load_llama(*weights, options, threads, part(from, to, "loading " + weights->config().name));
  };
  if (known == nullptr || !known->by_answers) {
    const bool fits = fit_as_f32(*weights);
    if (!fits)
      log_warning("too little memory for the weights as f32: answers are measured with bf16, which is less exact");
    const std::unique_ptr<Model> model = load(fits ? WeightFormat::kF32 : WeightFormat::kBf16, 0, 0.05);
    progress.show(0.05, "measuring channels");
    known = calibrate(*model, *weights, *tokenizer, shape(), threads, file, true, part(0.1, 0.5, "measuring answers"));
  }
  // As it is served by default: products with integers amplify the errors of a cache, and promises are about answers.
  const std::unique_ptr<Model> model = load(WeightFormat::kAuto, 0.5, 0.55);
  calibrate_frontier(*model, *tokenizer, shape(), threads, file, known, part(0.55, 1, "measuring policies"));
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

std::function<int()> setup_calibrate(CLI::App& app) {
  auto arguments = std::make_shared<CalibrateArguments>();
  app.add_option("--model", arguments->model, "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  add_number_flag(app, "--threads", arguments->threads, "CPU threads; 0 uses every core available to this process", 0,
                  64);
  app.add_flag("--force", arguments->force, "Measure again what is known already");
  app.footer(
      "The first start of serve measures the channels alone, in seconds; other backends and several processes do not.\n"
      "This command also measures what errors of each KV head do to the answers, with the weights as f32, and what\n"
      "policies cost. Then requests may choose a policy by promise: \"kv_cache\": {\"max_kl\": 0.002}.\n"
      "The result is kept in $XDG_CACHE_HOME/smartkv/calibrations, or ~/.cache/smartkv/calibrations.\n"
      "Examples:\n  smartkv calibrate --model model.gguf");
  return [arguments] {
    const auto file = calibrate_by_answers(arguments->model, arguments->threads, arguments->force);
    return file.empty() ? kRuntimeError : kOk;
  };
}

}  // namespace smartkv
