// The chat templates of a model, and the special tokens that they may use as variables.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace smartkv {

class Weights;

struct ChatTemplateFiles {
  std::map<std::string, std::string> sources;    // By name: "default", "tool_use", ... Empty if the model has none.
  std::map<std::string, std::string> variables;  // Tokens as written, by name: "pad_token", "unk_token", ...
};

// Reads the templates as transformers does. `model` is the path from which `weights` was opened.
//  - A GGUF file has the keys tokenizer.chat_template and tokenizer.chat_template.NAME.
//  - A folder has chat_template.jinja and additional_chat_templates/NAME.jinja. Without these, "chat_template" of its
//    tokenizer_config.json is used, which is a text or a list of named texts.
// Throws TokenizerError naming the file and the key.
ChatTemplateFiles load_chat_templates(const Weights& weights, const std::filesystem::path& model);

}  // namespace smartkv
