#include "engine/engine_options.h"

#include <fstream>
#include <sstream>

#include "engine/request_checks.h"
#include "engine/speculation/loaded_drafts.h"
#include "engine/speculation/pillar_cache.h"

namespace smartkv {
namespace {

// Checks that sizes are in range and that options go with those of the model.
void check_sizes(const EngineOptions& options, const RunCheck& run) {
  expect_at_least(run, "kv_cache_bytes", 0, options.kv_cache_bytes);
  expect_at_least(run, "kv_offload_bytes", 0, options.kv_offload_bytes);
  expect_at_least(run, "prefix_cache_bytes", -1, options.prefix_cache_bytes);
  expect_at_least(run, "prefix_cache_dir_bytes", 0, options.prefix_cache_dir_bytes);
  expect_at_least(run, "retention_seconds", 0, options.retention_seconds);
  expect_at_least(run, "max_sequences", 1, options.max_sequences);
  expect_at_least(run, "max_queue", 1, options.max_queue);
  expect_at_least(run, "prefill_chunk", 1, options.prefill_chunk);
  const ModelOptions& model = options.model;
  const std::string ranks = std::to_string(model.tensor_parallel);
  expect_option(run, model.tensor_parallel < 1 || model.threads <= int64_t{kMostThreads} * model.tensor_parallel,
                std::string("threads: expected at most ").append(std::to_string(kMostThreads)) +
                    " per process, found " + std::to_string(model.threads) + " for " + ranks + " processes");
  expect_option(run, model.tensor_parallel <= 1 || options.prefix_cache_dir.empty(),
                "prefix_cache_dir: expected none with tensor_parallel " + ranks +
                    ", because each rank holds only a part of a state, found " + options.prefix_cache_dir.string());
  expect_option(run, model.on_gpu() || options.kv_offload_bytes <= 0,
                "kv_offload_bytes: expected 0 on device cpu, where caches are already in host memory, found " +
                    std::to_string(options.kv_offload_bytes));
  if (options.draft_weights == DraftCopy::kNone) return;
  std::string with;
  if (model.tensor_parallel > 1) {
    with = "tensor_parallel " + ranks + ", which does not support drafting with the model's own weights";
  } else if (product_type(model) == ProductType::kF32) {
    with = "f32 activations (dtype " + std::string(name(model.dtype)) + ", weights " +
           std::string(name(model.weights)) + "), because 4-bit weights need bf16";
  }
  expect_option(run, with.empty(), "draft_weights: expected none with " + with + ", found \"int4\"");
}

// Checks the policy's name in `spec`, the value of the option `field`: null, a name, or an object with parameters.
void check_policy(const std::string& field, const nlohmann::json& spec) {
  if (spec.is_null()) return;
  const nlohmann::json name = spec.is_object() ? spec.value("policy", nlohmann::json()) : spec;
  std::string known;
  for (const std::string& one : plannable_names({})) {
    if (name == one) return;
    known += " " + one;
  }
  throw RequestError(RequestError::Kind::kInvalid, field,
                     field + ": expected one of" + known + ", found " +
                         name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream source;
  if (!(source << stream.rdbuf())) throw ChatTemplateError(file + ": cannot be read or is empty");
  files.sources = {{"default", source.str()}};
  try {
    return std::make_unique<ChatTemplate>(files);
  } catch (const ChatTemplateError& error) {
    throw ChatTemplateError(file + ": " + error.what());
  }
}

void check_engine_options(const EngineOptions& options, const RunCheck& run) {
  check_model_options(options.model, run);
  check_sizes(options, run);
  run([&] { check_policy("kv_cache", options.kv_cache); });
  run([&] {
    const SpeculationSpec speculation = parse_speculation(options.speculative);
    if (!is_pillar(speculation.kv_cache)) check_policy("speculative.kv_cache", speculation.kv_cache);
    check_loaded(speculation, {.draft_model = !options.draft_model.empty(),
                               .int4_weights = options.draft_weights == DraftCopy::kInt4,
                               .ranks = options.model.tensor_parallel});
  });
  check_allowed_lists(options, run);
  run([&] {
    if (!options.chat_template_file.empty()) read_chat_template(options.chat_template_file);
  });
}

}  // namespace smartkv
