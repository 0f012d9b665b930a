#include <fstream>
#include <sstream>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/log.h"
#include "engine/model/llama.h"
#include "engine/system_resources.h"
#include "engine/weights/weights.h"
#include "kernels/cpu_level.h"

namespace smartkv {
namespace {

constexpr int kMaxThreads = 64;

std::unique_ptr<ChatTemplate> open_chat_template(const std::string& file, const Tokenizer& tokenizer) {
  if (file.empty()) {
    const std::string& source = tokenizer.chat_template();
    return source.empty() ? nullptr : std::make_unique<ChatTemplate>(source);
  }
  std::ifstream stream(file, std::ios::binary);
  std::stringstream source;
  if (!(source << stream.rdbuf())) throw ChatTemplateError(file + ": cannot be read, or is empty");
  try {
    return std::make_unique<ChatTemplate>(source.str());
  } catch (const ChatTemplateError& error) {
    throw ChatTemplateError(file + ": " + error.what());
  }
}

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Options that no request could work with.
void check_options(const EngineOptions& options) {
  const auto at_least = [](const char* name, int64_t minimum, int64_t found) {
    if (found >= minimum) return;
    throw ModelError(std::string(name) + ": expected at least " + std::to_string(minimum) + ", found " +
                     std::to_string(found));
  };
  at_least("threads", 0, options.threads);
  at_least("context_length", 0, options.context_length);
  at_least("kv_cache_bytes", 0, options.kv_cache_bytes);
  at_least("max_sequences", 1, options.max_sequences);
  at_least("max_queue", 1, options.max_queue);
  at_least("prefill_chunk", 1, options.prefill_chunk);
}

}  // namespace

std::unique_ptr<Engine> Engine::create(const EngineOptions& options,
                                       const std::function<void(double, const std::string&)>& progress) {
  check_options(options);
  const auto report = [&](double done, const std::string& what) {
    if (progress) progress(done, what);
  };
  report(0, "opening the model");
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  EngineParts parts;
  parts.options = options;
  parts.tokenizer =
      weights->gguf() != nullptr ? load_tokenizer_gguf(*weights->gguf()) : load_tokenizer(options.model);
  parts.chat_template = open_chat_template(options.chat_template_file, *parts.tokenizer);

  const int threads = options.threads > 0 ? options.threads : std::min(available_cores(), kMaxThreads);
  parts.threads = std::make_unique<ThreadPool>(threads);
  const LlamaOptions llama{options.dtype, options.weights, options.context_length};
  parts.model = load_llama(*weights, llama, *parts.threads,
                           [&](double done) { report(done, "loading " + weights->config().name); });
  const ModelConfig& config = parts.model->config();
  parts.cache_shape = llama_cache_shape(config, llama);
  parts.options.context_length = options.context_length > 0 ? options.context_length : config.context_length;
  if (options.kv_cache_bytes == 0) parts.options.kv_cache_bytes = available_bytes() / 2;
  report(1, "loaded " + config.name);

  parts.description = {{"model", config.name},
                       {"architecture", config.architecture},
                       {"format", weights->format()},
                       {"dtype", parts.cache_shape.type == kernels::KvType::kBf16 ? "bf16" : "f32"},
                       {"weights", options.weights},
                       {"device", "cpu"},
                       {"cpu_level", kernels::name(kernels::cpu_level())},
                       {"threads", threads},
                       {"chat_template", parts.chat_template != nullptr}};
  log_info(config.name + " (" + weights->format() + "): " + mebibytes(parts.model->weight_bytes()) + " of weights; " +
           mebibytes(parts.options.kv_cache_bytes) + " for the KV cache, " +
           std::to_string(parts.options.kv_cache_bytes / parts.cache_shape.bytes_per_token()) +
           " tokens uncompressed; " +
           std::to_string(threads) + " threads, " + std::string(kernels::name(kernels::cpu_level())));
  return std::make_unique<EngineImpl>(std::move(parts));
}

}  // namespace smartkv
