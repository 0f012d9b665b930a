#include "server/commands/sampling_defaults.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "engine/weights/gguf.h"
#include "server/openai/field_reader.h"
#include "server/openai/schemas.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

struct Default {
  const char* name;  // name in requests and in generation_config.json
  const char* gguf;  // key in a GGUF file
};

constexpr std::array<Default, 5> kDefaults = {{{"temperature", "general.sampling.temp"},
                                               {"top_p", "general.sampling.top_p"},
                                               {"top_k", "general.sampling.top_k"},
                                               {"min_p", "general.sampling.min_p"},
                                               {"repetition_penalty", "general.sampling.penalty_repeat"}}};

bool is_whole(const Default& row) {
  return openai::body_schema(openai::Body::kCompletions).at("properties").at(row.name).at("type") == "integer";
}

// Throws ConfigError unless a request could have this value.
void check(const std::string& where, const Default& row, const Json& value) {
  const Json body = {{row.name, value}};
  openai::FieldReader fields(body, &openai::body_schema(openai::Body::kCompletions));
  try {
    is_whole(row) ? static_cast<void>(fields.integer(row.name, 0)) : static_cast<void>(fields.number(row.name, 0));
  } catch (const openai::ApiError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  if (value.is_null()) throw ConfigError(where + ": '" + row.name + "': expected a number, found null");
}

Json of_option(const nlohmann::json& option) {
  if (!option.is_object()) throw ConfigError("sampling: expected an object such as {\"temperature\": 0.7}, or null, found " + option.dump());
  Json result = Json::object();
  for (const auto& [key, value] : option.items()) {
    const auto row = std::find_if(kDefaults.begin(), kDefaults.end(), [&, name = key](const Default& one) { return one.name == name; });
    if (row == kDefaults.end()) {
      throw ConfigError("sampling: unknown field \"" + key + "\": expected temperature, top_p, top_k, min_p and repetition_penalty");
    }
    check("sampling", *row, value);
    result[key] = value;
  }
  return result;
}

// Returns do_sample of generation_config.json, or true if it is absent.
bool draws(const Json& config, const std::filesystem::path& file) {
  const Json value = config.value("do_sample", Json());
  if (!value.is_null() && !value.is_boolean()) throw ConfigError(file.string() + ": do_sample: expected true or false, found " + value.dump());
  return value != false;
}

Json of_folder(const std::filesystem::path& file) {
  Json result = Json::object();
  std::ifstream in(file, std::ios::binary);
  if (!in) return result;  // not every model has this file
  const Json config = Json::parse(in, nullptr, false);
  if (!config.is_object()) throw ConfigError(file.string() + ": expected a JSON object");
  for (const Default& row : kDefaults) {
    const auto value = config.find(row.name);
    if (value == config.end() || value->is_null()) continue;
    check(file.string(), row, *value);
    result[row.name] = *value;
  }
  if (draws(config, file)) return result;
  Json greedy = {{"temperature", 0}};  // only the repetition penalty changes a greedy choice
  if (result.contains("repetition_penalty")) greedy["repetition_penalty"] = result["repetition_penalty"];
  return greedy;
}

Json of_gguf(const std::filesystem::path& file) {
  Json result = Json::object();
  const GgufFile gguf = GgufFile::open(file);
  for (const Default& row : kDefaults) {
    Json value;
    if (is_whole(row)) {
      if (const auto number = gguf.get_int(row.gguf)) value = *number;
    } else if (const auto number = gguf.get_float(row.gguf)) {
      value = *number;
    }
    if (value.is_null()) continue;
    check(file.string(), row, value);
    result[row.name] = value;
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
