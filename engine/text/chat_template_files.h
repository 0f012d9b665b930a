// The chat templates that come with a model, and the tokens that they may name.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace smartkv {

class Weights;

struct ChatTemplateFiles {
  std::map<std::string, std::string> sources;    // by name: "default", "tool_use", ...; empty: the model has none
  std::map<std::string, std::string> variables;  // "pad_token", "unk_token", ...: tokens as written
};

// Reads them as transformers does. `model` is what `weights` was opened from.
//  - A GGUF file has keys tokenizer.chat_template and tokenizer.chat_template.NAME.
//  - A folder has chat_template.jinja and additional_chat_templates/NAME.jinja. Without these, the "chat_template" of its
//    tokenizer_config.json counts: a text, or a list of texts with names.
// Throws TokenizerError that names the file and the key.
ChatTemplateFiles load_chat_templates(const Weights& weights, const std::filesystem::path& model);

}  // namespace smartkv
