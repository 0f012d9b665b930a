#include "engine/text/chat_template_files.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "engine/weights/gguf.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

using Json = nlohmann::json;

// The tokens that templates may use as variables, and their keys in GGUF files. These are the tokens of transformers'
// special_tokens_map, except bos_token and eos_token, which the tokenizer provides.
constexpr std::pair<const char*, const char*> kTokens[] = {
    {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"},  // The format spells it this way.
    {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"}};

Json read_json(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Json::object();
  Json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object()) throw TokenizerError(path.string() + ": expected an object");
  return json;
}

ChatTemplateFiles of_gguf(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  ChatTemplateFiles files;
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kKey)) continue;
    if (key.size() == kKey.size()) {
      files.sources["default"] = *file.get_string(key);
    } else if (key[kKey.size()] == '.') {
      files.sources[key.substr(kKey.size() + 1)] = *file.get_string(key);
    }
  }
  const std::vector<std::string>* tokens = file.get_strings("tokenizer.ggml.tokens");
  for (const auto& [variable, key] : kTokens) {
    const std::optional<int64_t> id = file.get_int(key);
    // Some converters write -1 for none.
    if (!id || tokens == nullptr || *id < 0 || *id >= static_cast<int64_t>(tokens->size())) continue;
    files.variables[variable] = (*tokens)[static_cast<size_t>(*id)];
  }
  return files;
}

std::map<std::string, std::string> listed_templates(const Json& list, const std::string& file) {
  std::map<std::string, std::string> sources;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string key = "chat_template[" + std::to_string(i) + "]";
    const auto member = [&](const char* name) {
      if (!list[i].is_object() || !list[i].contains(name) || !list[i][name].is_string()) {
        throw TokenizerError(file + ": " + key + ": expected an object with the strings \"name\" and \"template\"");
      }
      return list[i][name].get<std::string>();
    };
    if (!sources.emplace(member("name"), member("template")).second) {
      throw TokenizerError(file + ": " + key + ": the name \"" + member("name") + "\" appears twice");
    }
  }
  return sources;
}

std::map<std::string, std::string> templates_of(const std::filesystem::path& folder, const Json& config,
                                                const std::string& file) {
  std::map<std::string, std::string> sources;
  if (const auto path = folder / "chat_template.jinja"; std::filesystem::exists(path))
    sources["default"] = read_text_file(path);
  if (const auto named = folder / "additional_chat_templates"; std::filesystem::is_directory(named)) {
    for (const auto& entry : std::filesystem::directory_iterator(named)) {
      if (entry.path().extension() == ".jinja") sources[entry.path().stem().string()] = read_text_file(entry.path());
    }
  }
  if (!sources.empty()) return sources;
  const Json source = config.value("chat_template", Json());
  if (source.is_array()) return listed_templates(source, file);
  if (source.is_string()) return {{"default", source.get<std::string>()}};
  if (source.is_null()) return {};
  throw TokenizerError(file + ": chat_template: expected a string, or an array of them by name");
}

ChatTemplateFiles of_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const Json config = read_json(path), map = read_json(folder / "special_tokens_map.json");
  ChatTemplateFiles files;
  files.sources = templates_of(folder, config, path.string());
  for (const auto& [variable, key] : kTokens) {
    Json token = config.value(variable, map.value(variable, Json()));
    if (token.is_object()) token = token.value("content", Json());
    if (token.is_string()) files.variables[variable] = token.get<std::string>();
  }
  return files;
}

}  // namespace

ChatTemplateFiles load_chat_templates(const Weights& weights, const std::filesystem::path& model) {
  return weights.gguf() != nullptr ? of_gguf(*weights.gguf()) : of_folder(model);
}

}  // namespace smartkv
