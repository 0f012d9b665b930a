#include <malloc.h>

#include <future>

#include "cache/policies/calibrated/calibrated.h"
#include "engine/calibration/calibration.h"
#include "engine/engine_impl.h"
#include "engine/engine_options.h"
#include "engine/log.h"
#include "engine/model/llama.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/prefix_identity.h"
#include "engine/speculation/draft_vocabulary.h"
#include "engine/system_resources.h"
#include "engine/weights/draft_weights.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/weights.h"
#include "kernels/cpu_level.h"

namespace smartkv {
namespace {

// Returns the model's chat template, or null if it has none that can be used. A `file`, if not empty, replaces all
// templates of the model.
std::unique_ptr<ChatTemplate> open_chat_template(const std::string& file, const Weights& weights,
                                                 const std::filesystem::path& model) {
  ChatTemplateFiles files = load_chat_templates(weights, model);
  return file.empty() ? make_chat_template(files) : read_chat_template(file, std::move(files));
}

// Loads the model of --draft-model.
void load_draft_model(const Weights& target, EngineParts* parts) {
  const std::filesystem::path& path = parts->options.draft_model;
  const std::unique_ptr<Weights> weights = open_draft_weights(path, target);
  if (weights->output_tokens().empty()) {  // a complete model, with a tokenizer of its own
    try {
      check_draft_vocabulary({parts->tokenizer.get(), parts->model->config().vocab_size},
                             {load_tokenizer(*weights, path).get(), weights->config().vocab_size});
    } catch (const ModelError& error) {
      throw ModelError("draft_model: " + path.string() + ": " + error.what());
    }
  }
  const ModelOptions options = draft_model_options(parts->options.model);
  parts->draft_identity = model_identity(*weights);
  parts->draft_model = load_llama(*weights, options, *parts->threads);
  parts->draft_shape = llama_cache_shape(parts->draft_model->config(), options);
  log_info("draft model " + parts->draft_model->config().name + ": " + mebibytes(parts->draft_model->weight_bytes()) +
           " of weights");
}

// As sensitivity_of(), but null with a warning if the model cannot be calibrated.
std::shared_ptr<const Sensitivity> sensitivity_or_null(const Weights& weights, Model& model, const Tokenizer& tokenizer,
                                                       ThreadPool& threads, const ModelOptions& options) {
  try {
    return sensitivity_of(model, weights, tokenizer, threads, options);
  } catch (const std::exception& error) {
    log_warning(weights.config().name + " cannot be calibrated (" + error.what() +
                "): requests cannot choose the policy \"" + std::string(kCalibratedPolicy) + '"');
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<Engine> Engine::create(const EngineOptions& options,
                                       const std::function<void(double, const std::string&)>& progress) {
  check_engine_options(options);
  const auto report = [&](double done, const std::string& what) {
    if (progress) progress(done, what);
  };
  report(0, "opening the model");
  std::unique_ptr<Weights> weights = Weights::open(options.model.path);
  EngineParts parts;
  parts.options = options;
  ModelOptions& model = parts.options.model;
  settle_context(weights->config().context_length, &model);
  // They take a core while the weights are packed.
  auto tokenizer = std::async(std::launch::async, [&] { return load_tokenizer(*weights, model.path); });
  auto identity = std::async(std::launch::async, [&] { return model_identity(*weights); });
  parts.chat_template = open_chat_template(options.chat_template_file, *weights, model.path);

  if (model.threads == 0) model.threads = std::min(available_cores(), kMostThreads);
  parts.threads = std::make_unique<ThreadPool>(threads_of_rank(model.threads, 0, model.tensor_parallel));
  const auto loading = [&](double done) { report(done, "loading " + weights->config().name); };
  parts.model = model.tensor_parallel > 1 ? load_ranked(*weights, model, *parts.threads, loading)
                                          : load_llama(*weights, model, *parts.threads, loading);
  parts.tokenizer = tokenizer.get();
  for (const std::string& warning : parts.tokenizer->warnings()) log_warning(warning);
  parts.model_identity = identity.get();
  const ModelConfig& config = parts.model->config();
  parts.cache_shape = ranked_cache_shape(config, model);
  model.context_length = config.context_length;
  if (!options.draft_model.empty()) load_draft_model(*weights, &parts);
  if (options.draft_weights == DraftCopy::kInt4) {
    parts.int4_model = load_llama(*weights, draft_options(model, WeightFormat::kInt4), *parts.threads, nullptr,
                                  parts.model->kv_backend());  // shared, because it drafts from the model's caches
  }
  if (options.kv_cache_bytes == 0) parts.options.kv_cache_bytes = available_bytes() / 2;
  if (!options.prefix_cache_dir.empty()) parts.prefix_identity = prefix_identity(*weights, options);
  report(1, "loaded " + config.name);

  parts.description = {{"model", config.name},
                       {"architecture", config.architecture},
                       {"format", weights->format()},
                       {"dtype", name(product_type(model))},
                       {"weights", stored_weights(model, *weights)},
                       {"backend", name(model.backend)},
                       {"device", model.device},
                       {"tensor_parallel", model.tensor_parallel},
                       {"batch_invariant", parts.model->batch_invariant()},
                       {"cpu_level", kernels::name(kernels::cpu_level())},
                       {"threads", model.threads},
                       {"draft_model", parts.draft_model != nullptr ? parts.draft_model->config().name : ""},
                       {"draft_weights", name(options.draft_weights)},
                       {"chat_template", parts.chat_template != nullptr}};
  // The engine closes it before this function returns.
  parts.calibration = std::make_shared<Calibration>([&report, &weights = *weights, &served = *parts.model,
                                                     &tokenizer = *parts.tokenizer, &threads = *parts.threads, model] {
    report(1, "calibrating " + weights.config().name);
    return sensitivity_or_null(weights, served, tokenizer, threads, model);
  });
  auto engine = std::make_unique<EngineImpl>(std::move(parts));
  engine->log_served();
  // Serving needs neither the file, whose pages count as memory of the process, nor what loading and calibrating held.
  weights.reset();
  ::malloc_trim(0);
  return engine;
}

}  // namespace smartkv
