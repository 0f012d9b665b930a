#include "engine/engine_options.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/log.h"
#include "engine/memory_plan.h"
#include "engine/request_checks.h"
#include "engine/speculation/loaded_drafts.h"
#include "engine/speculation/pillar_cache.h"

namespace smartkv {
namespace {

constexpr int kMostRopeFactor = 1024;

void at_least(const char* name, int64_t minimum, int64_t found) {
  if (found >= minimum) return;
  throw ModelError(std::string(name) + ": expected at least " + std::to_string(minimum) + ", found " + std::to_string(found));
}

void check_sizes(const EngineOptions& options, const RunCheck& run) {
  const std::pair<const char*, std::pair<int64_t, int64_t>> sizes[] = {{"threads", {0, options.threads}},
                                                                       {"tensor_parallel", {1, options.tensor_parallel}},
                                                                       {"context_length", {0, options.context_length}},
                                                                       {"kv_cache_bytes", {0, options.kv_cache_bytes}},
                                                                       {"kv_offload_bytes", {0, options.kv_offload_bytes}},
                                                                       {"prefix_cache_bytes", {-1, options.prefix_cache_bytes}},
                                                                       {"prefix_cache_dir_bytes", {0, options.prefix_cache_dir_bytes}},
                                                                       {"max_sequences", {1, options.max_sequences}},
                                                                       {"max_queue", {1, options.max_queue}},
                                                                       {"prefill_chunk", {1, options.prefill_chunk}}};
  for (const auto& [name, size] : sizes) run([&, name = name, size = size] { at_least(name, size.first, size.second); });
  run([&] {
    if (options.tensor_parallel < 1 || threads_of_rank(options.threads, 0, options.tensor_parallel) <= kMostThreads) return;
    throw ModelError("threads: expected at most " + std::to_string(kMostThreads) + " per process, found " +
                     std::to_string(options.threads) + " for " + std::to_string(options.tensor_parallel) +
                     " processes");
  });
}

void check_prefix_directory(const EngineOptions& options) {
  if (options.tensor_parallel > 1 && !options.prefix_cache_dir.empty()) {
    throw ModelError("prefix_cache_dir: expected none with tensor_parallel " + std::to_string(options.tensor_parallel) +
                     ", because each rank holds only a part of a state, found " + options.prefix_cache_dir.string());
  }
}

void check_offload(const EngineOptions& options) {
  if (options.kv_offload_bytes > 0 && options.device == "cpu") {
    throw ModelError("kv_offload_bytes: expected 0 on device cpu, where caches are already in host memory, found " +
                     std::to_string(options.kv_offload_bytes));
  }
}

void check_draft_weights(const EngineOptions& options, const LlamaOptions& llama) {
  const std::string& found = options.draft_weights;
  if (found == "none") return;
  if (found != "int4") throw ModelError("draft_weights: expected none or int4, found \"" + found + "\"");
  if (options.tensor_parallel > 1) {
    throw ModelError("draft_weights: expected none with tensor_parallel " + std::to_string(options.tensor_parallel) +
                     ", which does not support drafting with the model's own weights, found \"" + found + "\"");
  }
  if (product_type(llama) == ProductType::kF32) {
    throw ModelError("draft_weights: expected none with f32 activations (dtype " + options.dtype + ", weights " +
                     options.weights + "), because 4-bit weights need bf16, found \"" + found + "\"");
  }
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
                     field + ": expected one of" + known + ", found " + name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

RopeStretch parse_rope_scaling(const nlohmann::json& option) {
  const auto fail = [](const std::string& where, const std::string& expected, const nlohmann::json& found) {
    throw ModelError(where + ": expected " + expected + ", found " + found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  RopeStretch stretch;
  if (option.is_null()) return stretch;
  nlohmann::json type = option;
  if (option.is_object()) {
    type = option.value("type", option.value("rope_type", nlohmann::json()));
    for (const auto& [key, value] : option.items()) {
      if (key == "factor") {
        if (!value.is_number() || !(value >= 1) || !(value <= kMostRopeFactor)) {
          fail("rope_scaling.factor", "a number from 1 to " + std::to_string(kMostRopeFactor), value);
        }
        stretch.factor = value.get<double>();
      } else if (key != "type" && key != "rope_type") {
        fail("rope_scaling", "only the members type and factor", key);
      }
    }
  }
  if (type != "none" && type != "linear" && type != "dynamic" && type != "yarn") {
    fail(option.is_object() ? "rope_scaling.type" : "rope_scaling", "none, linear, dynamic or yarn", type);
  }
  stretch.scaling = type.get<std::string>();
  return stretch;
}

void settle_context(int64_t own, LlamaOptions* llama) {
  const bool scaled = llama->rope_scaling != "none";
  const double factor = !scaled ? 1 : llama->rope_factor;  // 0: follows from context_length
  const auto longest = static_cast<int64_t>(factor * static_cast<double>(own));
  if (llama->context_length == 0 && scaled && factor > 0) llama->context_length = longest;
  const auto most = kMostRopeFactor * own;
  if (scaled && factor == 0 && llama->context_length > most) {
    throw ModelError("context_length: expected at most " + std::to_string(most) + ", " + std::to_string(kMostRopeFactor) +
                     " times the model's own context length, found " + std::to_string(llama->context_length));
  }
  if (scaled && factor == 0 && llama->context_length <= own) {
    throw ModelError("rope_scaling: expected a factor, or a context_length beyond the model's own " + std::to_string(own) + ", found neither");
  }
  if (llama->context_length <= own) return;
  if (factor > 0 && llama->context_length > longest) {
    const std::string length = std::to_string(llama->context_length);
    throw ModelError("context_length: expected at most " + std::to_string(longest) +
                     (scaled ? ", the model's own " + std::to_string(own) + " times the factor of rope_scaling, found " + length
                             : ", the model's own context length, found " + length +
                                   "; rope_scaling yarn, linear or dynamic extends it"));
  }
  log_warning("context_length: " + std::to_string(llama->context_length) + " exceeds the model's own " +
              std::to_string(own) + "; rope_scaling " + llama->rope_scaling +
              " stretches positions, and answers to long prompts may be worse");
}

RankedModelOptions model_options(const EngineOptions& options) {
  const RopeStretch rope = parse_rope_scaling(options.rope_scaling);
  return {.model = options.model,
          .llama = {.dtype = options.dtype,
                    .weights = options.weights,
                    .context_length = options.context_length,
                    .rope_scaling = rope.scaling,
                    .rope_factor = rope.factor,
                    .backend = options.backend,
                    .device = options.device,
                    .cuda_graphs = options.cuda_graphs},
          .gates = options.gates,
          .channel_worth = options.channel_worth,
          .ranks = options.tensor_parallel};
}

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
  run([&] { parse_rope_scaling(options.rope_scaling); });
  EngineOptions unscaled = options;
  unscaled.rope_scaling = nullptr;
  const RankedModelOptions model = model_options(unscaled);
  check_sizes(options, run);
  const std::vector<std::string> llama_errors = llama_option_errors(model.llama);
  for (const std::string& error : llama_errors) run([&] { throw ModelError(error); });
  run([&] { check_ranks(model); });
  run([&] { check_prefix_directory(options); });
  run([&] { check_offload(options); });
  if (llama_errors.empty()) run([&] { check_draft_weights(options, model.llama); });
  run([&] { check_policy("kv_cache", options.kv_cache); });
  run([&] {
    const SpeculationSpec speculation = parse_speculation(options.speculative);
    if (!is_pillar(speculation.kv_cache)) check_policy("speculative.kv_cache", speculation.kv_cache);
    check_loaded(speculation, {.draft_model = !options.draft_model.empty(),
                               .int4_weights = options.draft_weights == "int4",
                               .ranks = options.tensor_parallel});
  });
  check_allowed_lists(options, run);
  run([&] {
    if (!options.chat_template_file.empty()) read_chat_template(options.chat_template_file);
  });
}

}  // namespace smartkv
