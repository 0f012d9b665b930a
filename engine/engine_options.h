// What the options of an engine stand for, and whether they go together: told without a model.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/model/llama.h"
#include "engine/parallel/tensor_parallel.h"

namespace smartkv {

constexpr int kMostThreads = 64;  // of a process

struct RopeStretch {
  std::string scaling = "none";  // none, linear, dynamic or yarn
  double factor = 0;             // 0: not given
};
// Reads EngineOptions::rope_scaling. Throws ModelError naming the member.
RopeStretch parse_rope_scaling(const nlohmann::json& option);

// Sets the context that `llama` serves with a model of `own` tokens, and logs a warning if it is longer. Throws ModelError if it is
// longer than rope_scaling allows.
void settle_context(int64_t own, LlamaOptions* llama);

// Returns the options that the model is loaded with. `threads` is left at 1. Throws ModelError for rope_scaling.
RankedModelOptions model_options(const EngineOptions& options);

// Parses the template of options.chat_template_file. Throws ChatTemplateError naming the file.
std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files = {});

// Called with each check; a check throws what is wrong.
using RunCheck = std::function<void(const std::function<void()>& check)>;

// Runs the checks of options that fit no model. A check throws what Engine::create() throws: ModelError, ChatTemplateError or
// RequestError, whose message begins with the option. Only the parameters of policies are left, because they depend on the model.
void check_engine_options(
    const EngineOptions& options, const RunCheck& run = [](const std::function<void()>& check) { check(); });

}  // namespace smartkv
