// Checks that the options of an engine are compatible. None of this needs a loaded model.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace smartkv {

constexpr int kMostThreads = 64;  // in one process

// Parses the template in options.chat_template_file. It replaces all sources in `files`, the model's own templates;
// their variables stay. Throws ChatTemplateError naming the file.
std::unique_ptr<ChatTemplate> read_chat_template(const std::string& file, ChatTemplateFiles files = {});

// Checks the options as far as that is possible without a model, one call of `run` for each check. A check throws what
// Engine::create() would throw: ModelError, ChatTemplateError or RequestError. The message begins with the option's
// name. The parameters of policies are not checked, because they depend on the model.
void check_engine_options(const EngineOptions& options, const RunCheck& run = run_check);

}  // namespace smartkv
