#include "engine/engine_options.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/memory_plan.h"
#include "engine/request_checks.h"
#include "engine/speculation/loaded_drafts.h"
#include "engine/speculation/pillar_cache.h"

namespace smartkv {
namespace {

void at_least(const char* name, int64_t minimum, int64_t found) {
  if (found >= minimum) return;
  throw ModelError(std::string(name) + ": expected at least " + std::to_string(minimum) + ", found " + std::to_string(found));
}

void check_sizes(const EngineOptions& options) {
  at_least("threads", 0, options.threads);
  at_least("tensor_parallel", 1, options.tensor_parallel);
  at_least("context_length", 0, options.context_length);
  at_least("kv_cache_bytes", 0, options.kv_cache_bytes);
  at_least("kv_offload_bytes", 0, options.kv_offload_bytes);
  at_least("prefix_cache_bytes", -1, options.prefix_cache_bytes);
  at_least("prefix_cache_dir_bytes", 0, options.prefix_cache_dir_bytes);
  at_least("max_sequences", 1, options.max_sequences);
  at_least("max_queue", 1, options.max_queue);
  at_least("prefill_chunk", 1, options.prefill_chunk);
  if (threads_of_rank(options.threads, 0, options.tensor_parallel) > kMostThreads) {
    throw ModelError("threads: expected at most " + std::to_string(kMostThreads) + " for each process, found " +
                     std::to_string(options.threads) + " for " + std::to_string(options.tensor_parallel));
  }
}

void check_memory(const EngineOptions& options) {
  const std::string ranks = " with tensor_parallel " + std::to_string(options.tensor_parallel);
  if (options.tensor_parallel > 1 && !options.prefix_cache_dir.empty()) {
    throw ModelError("prefix_cache_dir: expected none" + ranks + ", whose ranks hold a part of each state, found " +
                     options.prefix_cache_dir.string());
  }
  if (options.kv_offload_bytes > 0 && options.device == "cpu") {
    throw ModelError("kv_offload_bytes: expected 0 on device cpu, whose caches are in the host's memory already, found " +
                     std::to_string(options.kv_offload_bytes));
  }
}

void check_draft_weights(const EngineOptions& options, const LlamaOptions& llama) {
  const std::string& found = options.draft_weights;
  if (found == "none") return;
  if (found != "int4") throw ModelError("draft_weights: expected none or int4, found \"" + found + "\"");
  if (options.tensor_parallel > 1) {
    throw ModelError("draft_weights: expected none with tensor_parallel " + std::to_string(options.tensor_parallel) +
                     ", whose ranks draft for nobody, found \"" + found + "\"");
  }
  if (product_type(llama) == ProductType::kF32) {
    throw ModelError("draft_weights: expected none with activations of f32 (dtype " + options.dtype + ", weights " + options.weights +
                     "), because 4-bit weights need bf16, found \"" + found + "\"");
  }
}

// Checks the policy's name in `field`, which is null, a name, or an object with its parameters.
void check_policy(const std::string& field, const nlohmann::json& spec) {
  if (spec.is_null()) return;
  const nlohmann::json name = spec.is_object() ? spec.value("policy", nlohmann::json()) : spec;
  std::string known;
  for (const std::string& one : plannable_names({})) {
    if (name == one) return;
    known += " " + one;
  }
  throw RequestError(RequestError::Kind::kInvalid, field,
                     field + ": expected one of" + known + ", found " + name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

RankedModelOptions model_options(const EngineOptions& options) {
  return {.model = options.model,
          .llama = {.dtype = options.dtype,
                    .weights = options.weights,
                    .context_length = options.context_length,
                    .backend = options.backend,
                    .device = options.device,
                    .cuda_graphs = options.cuda_graphs},
          .gates = options.gates,
          .ranks = options.tensor_parallel};
}

std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream source;
  if (!(source << stream.rdbuf())) throw ChatTemplateError(file + ": cannot be read, or is empty");
  files.sources = {{"default", source.str()}};
  try {
    return std::make_unique<ChatTemplate>(files);
  } catch (const ChatTemplateError& error) {
    throw ChatTemplateError(file + ": " + error.what());
  }
}

void check_engine_options(const EngineOptions& options) {
  const RankedModelOptions model = model_options(options);
  check_sizes(options);
  check_llama_options(model.llama);
  check_ranks(model);
  check_memory(options);
  check_draft_weights(options, model.llama);
  check_policy("kv_cache", options.kv_cache);
  const SpeculationSpec speculation = parse_speculation(options.speculative);
  if (!is_pillar(speculation.kv_cache)) check_policy("speculative.kv_cache", speculation.kv_cache);
  check_loaded(speculation, {.draft_model = !options.draft_model.empty(),
                             .int4_weights = options.draft_weights == "int4",
                             .ranks = options.tensor_parallel});
  check_allowed_lists(options);
  if (!options.chat_template_file.empty()) read_chat_template(options.chat_template_file);
}

}  // namespace smartkv
