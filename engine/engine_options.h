// Interprets the options of an engine and checks that they are compatible. None of this needs a loaded model.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/model/llama.h"
#include "engine/parallel/tensor_parallel.h"

namespace smartkv {

constexpr int kMostThreads = 64;  // in one process

// EngineOptions::rope_scaling, parsed.
struct RopeStretch {
  std::string scaling = "none";  // none, linear, dynamic or yarn
  double factor = 0;             // 0 if it is not given
};
// Reads EngineOptions::rope_scaling. Throws ModelError naming the member.
RopeStretch parse_rope_scaling(const nlohmann::json& option);

// Checks the context length that `llama` asks for against the model's own, `own` tokens.
//  - If rope_scaling has a factor and no context length is given, sets llama->context_length to the factor times `own`.
//  - Logs a warning if the context is longer than the model's own.
//  - Throws ModelError if it is longer than rope_scaling allows, or if rope_scaling has neither a factor nor a longer
//    context.
void settle_context(int64_t own, LlamaOptions* llama);

// Returns the options that the model is loaded with. Leaves `threads` at 1. Throws ModelError for rope_scaling.
RankedModelOptions model_options(const EngineOptions& options);

// Parses the template in options.chat_template_file. It replaces all sources in `files`, the model's own templates;
// their variables stay. Throws ChatTemplateError naming the file.
std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files = {});

// Runs one check. The check throws if it fails, so a caller that wants to collect all errors catches what it throws.
using RunCheck = std::function<void(const std::function<void()>& check)>;

// Checks the options as far as that is possible without a model, one call of `run` for each check. A check throws what
// Engine::create() would throw: ModelError, ChatTemplateError or RequestError. The message begins with the option's
// name. The parameters of policies are not checked, because they depend on the model.
void check_engine_options(
    const EngineOptions& options, const RunCheck& run = [](const std::function<void()>& check) { check(); });

}  // namespace smartkv
