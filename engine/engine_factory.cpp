#include <utility>

#include "engine/engine_impl.h"
#include "engine/engine_options.h"
#include "engine/log.h"
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
std::unique_ptr<ChatTemplate> open_chat_template(const std::string& file, const Weights& weights, const std::filesystem::path& model) {
  ChatTemplateFiles files = load_chat_templates(weights, model);
  if (file.empty()) {
    const bool usable = files.sources.contains("default") || files.sources.contains("tool_use");
    return usable ? std::make_unique<ChatTemplate>(files) : nullptr;
  }
  return read_chat_template(file, std::move(files));
}

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Returns the activation type of a draft model. It runs on the native backend, which lacks f16; beside f16 the caches
// are bf16, and so is the draft model.
std::string draft_dtype(const std::string& dtype) { return dtype == "f16" ? "bf16" : dtype; }

// Loads the model of --draft-model with the options of the model that it drafts for, but on the native backend and the
// CPU. Weights that its file has as floats take 4 bits instead of 16, because that saves more in bytes than it costs in
// acceptance. This does not apply to f32 activations, or if the weights are int8 or int4 anyway.
void load_draft_model(const Weights& target, const LlamaOptions& llama, EngineParts* parts) {
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
  LlamaOptions options = llama;
  options.backend = "native";
  options.device = "cpu";
  options.cuda_graphs = "auto";
  options.dtype = draft_dtype(llama.dtype);
  options.context_length = parts->options.context_length;
  options.rope_factor = 0;  // follows from the draft model's own context and context_length
  if (product_type(llama) != ProductType::kF32 && options.weights != "int8" && options.weights != "int4") {
    options.weights = "file";
    options.int4_floats = true;
  }
  parts->draft_identity = model_identity(*weights);
  parts->draft_model = load_llama(*weights, options, *parts->threads);
  parts->draft_shape = llama_cache_shape(parts->draft_model->config(), options);
  log_info("draft model " + parts->draft_model->config().name + ": " +
           mebibytes(parts->draft_model->weight_bytes()) + " of weights");
}

}  // namespace

std::unique_ptr<Engine> Engine::create(const EngineOptions& options,
                                       const std::function<void(double, const std::string&)>& progress) {
  check_engine_options(options);
  RankedModelOptions ranked = model_options(options);
  LlamaOptions& llama = ranked.llama;
  const auto report = [&](double done, const std::string& what) {
    if (progress) progress(done, what);
  };
  report(0, "opening the model");
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  settle_context(weights->config().context_length, &llama);
  EngineParts parts;
  parts.options = options;
  parts.tokenizer = load_tokenizer(*weights, options.model);
  for (const std::string& warning : parts.tokenizer->warnings()) log_warning(warning);
  parts.chat_template = open_chat_template(options.chat_template_file, *weights, options.model);

  const int threads = options.threads > 0 ? options.threads : std::min(available_cores(), kMostThreads);
  ranked.threads = threads;
  parts.threads = std::make_unique<ThreadPool>(threads_of_rank(threads, 0, ranked.ranks));
  const auto loading = [&](double done) { report(done, "loading " + weights->config().name); };
  parts.model = ranked.ranks > 1 ? load_ranked(*weights, ranked, *parts.threads, loading)
                                 : load_llama(*weights, llama, *parts.threads, loading);
  const ModelConfig& config = parts.model->config();
  parts.cache_shape = ranked_cache_shape(config, ranked);
  parts.options.context_length = config.context_length;
  if (!options.draft_model.empty()) load_draft_model(*weights, llama, &parts);
  if (options.draft_weights == "int4") {
    LlamaOptions int4{draft_dtype(options.dtype), "int4", llama.context_length, llama.rope_scaling, llama.rope_factor};
    parts.int4_model = load_llama(*weights, int4, *parts.threads, nullptr,
                                  parts.model->kv_backend());  // shared, because it drafts from the model's caches
  }
  parts.model_identity = model_identity(*weights);
  if (options.kv_cache_bytes == 0) parts.options.kv_cache_bytes = available_bytes() / 2;
  if (!options.prefix_cache_dir.empty()) parts.prefix_identity = prefix_identity(*weights, options);
  report(1, "loaded " + config.name);

  parts.description = {{"model", config.name},
                       {"architecture", config.architecture},
                       {"format", weights->format()},
                       {"dtype", name(product_type(llama))},
                       {"weights", stored_weights(llama, *weights)},
                       {"backend", options.backend},
                       {"device", options.device},
                       {"tensor_parallel", options.tensor_parallel},
                       {"batch_invariant", parts.model->batch_invariant()},
                       {"cpu_level", kernels::name(kernels::cpu_level())},
                       {"threads", threads},
                       {"draft_model", parts.draft_model != nullptr ? parts.draft_model->config().name : ""},
                       {"draft_weights", options.draft_weights},
                       {"chat_template", parts.chat_template != nullptr}};
  log_info(config.name + " (" + weights->format() + "): " + mebibytes(parts.model->weight_bytes()) + " of weights; " +
           mebibytes(parts.options.kv_cache_bytes) + " for the KV cache, " +
           std::to_string(parts.options.kv_cache_bytes / (parts.model->ranks() * parts.cache_shape.bytes_per_token())) +
           " tokens uncompressed; " +
           std::to_string(threads) + " threads, " + std::string(kernels::name(kernels::cpu_level())) +
           (options.backend == "native" ? "" : ", backend " + options.backend) +
           (options.tensor_parallel == 1 ? "" : ", " + std::to_string(options.tensor_parallel) + " ranks"));
  return std::make_unique<EngineImpl>(std::move(parts));
}

}  // namespace smartkv
