#include "server/commands/sampling_defaults.h"

#include <fstream>

#include "engine/sampling/sampling_fields.h"
#include "engine/weights/gguf.h"
#include "server/openai/field_table.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

// Throws ConfigError unless a request could have this value.
void check_value(const std::string& where, const SamplingField& row, const Json& value) {
  const std::string name(row.name);
  const Json body = {{name, value}};
  openai::FieldReader fields(body, &openai::body_schema(openai::Body::kCompletions));
  try {
    row.is_whole() ? static_cast<void>(fields.integer(name, 0)) : static_cast<void>(fields.number(name, 0));
  } catch (const openai::ApiError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  if (value.is_null()) throw ConfigError(where + ": '" + name + "': expected a number, found null");
}

Json of_option(const nlohmann::json& option) {
  if (!option.is_object())
    throw ConfigError("sampling: expected an object such as {\"temperature\": 0.7}, or null, found " + option.dump());
  Json result = Json::object();
  std::string names;
  for (const SamplingField& row : kSamplingFields) {
    if (row.gguf.empty()) continue;  // models recommend no value
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    const auto value = option.find(row.name);
    if (value == option.end()) continue;
    check_value("sampling", row, *value);
    result[std::string(row.name)] = *value;
  }
  for (const auto& [key, value] : option.items()) {
    if (!result.contains(key)) throw ConfigError("sampling: unknown field \"" + key + "\": expected one of " + names);
  }
  return result;
}

// Returns do_sample of generation_config.json, or true if it is absent.
bool draws(const Json& config, const std::filesystem::path& file) {
  const Json value = config.value("do_sample", Json());
  if (!value.is_null() && !value.is_boolean())
    throw ConfigError(file.string() + ": do_sample: expected true or false, found " + value.dump());
  return value != false;
}

Json of_folder(const std::filesystem::path& file) {
  Json result = Json::object();
  std::ifstream in(file, std::ios::binary);
  if (!in) return result;  // not every model has this file
  const Json config = Json::parse(in, nullptr, false);
  if (!config.is_object()) throw ConfigError(file.string() + ": expected a JSON object");
  for (const SamplingField& row : kSamplingFields) {
    const auto value = config.find(row.name);
    if (row.gguf.empty() || value == config.end() || value->is_null()) continue;
    check_value(file.string(), row, *value);
    result[std::string(row.name)] = *value;
  }
  if (draws(config, file)) return result;
  Json greedy = {{"temperature", 0}};  // only the repetition penalty changes a greedy choice
  if (result.contains("repetition_penalty")) greedy["repetition_penalty"] = result["repetition_penalty"];
  return greedy;
}

Json of_gguf(const std::filesystem::path& file) {
  Json result = Json::object();
  const GgufFile gguf = GgufFile::open(file);
  for (const SamplingField& row : kSamplingFields) {
    Json value;
    if (row.gguf.empty()) continue;
    if (row.is_whole()) {
      if (const auto number = gguf.get_int(row.gguf)) value = *number;
    } else if (const auto number = gguf.get_float(row.gguf)) {
      value = *number;
    }
    if (value.is_null()) continue;
    check_value(file.string(), row, value);
    result[std::string(row.name)] = value;
  }
  return result;
}

}  // namespace

Json sampling_defaults(const ServerOptions& options) {
  if (!options.sampling.is_null()) return of_option(options.sampling);
  const std::filesystem::path& model = options.engine.model.path;
  return std::filesystem::is_directory(model) ? of_folder(model / "generation_config.json") : of_gguf(model);
}

}  // namespace smartkv
