// What the options of an engine stand for, and whether they go together: told without a model.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/model/llama.h"
#include "engine/parallel/tensor_parallel.h"

namespace smartkv {

constexpr int kMostThreads = 64;  // of a process

// Returns the options that the model is loaded with. `threads` is left at 1.
RankedModelOptions model_options(const EngineOptions& options);

// Parses the template of options.chat_template_file. Throws ChatTemplateError naming the file.
std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files = {});

// Throws what Engine::create() throws for options that fit no model: ModelError, ChatTemplateError or RequestError, whose message
// begins with the option. Only the parameters of policies are left, because they depend on the model.
void check_engine_options(const EngineOptions& options);

}  // namespace smartkv
