#include "server/openai/api_request.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "engine/sampling/sampling_fields.h"
#include "server/openai/json_body.h"

namespace smartkv::openai {

namespace {

// Bytes of kv_cache or speculative: a name and a few numbers, copied for every prompt.
constexpr size_t kMaxSpecBytes = 4096;

void check_count(const char* field, const char* what, size_t found, size_t most) {
  if (found <= most) return;
  throw invalid_request(field, std::string("'") + field + "': expected at most " + std::to_string(most) + ' ' + what +
                                   ", found " + std::to_string(found));
}

std::vector<std::string> read_stop(FieldReader& fields) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  const Json& list = fields.schema("stop").at("anyOf").at(1);
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    check_count("stop", "strings", value->size(), list.at("maxItems"));
    for (size_t i = 0; i < value->size(); ++i) {
      stops.push_back(read_string((*value)[i], "stop[" + std::to_string(i) + "]"));
    }
  } else {
    throw wrong_type("stop", "a string or an array of strings", *value);
  }
  const size_t most_bytes = list.at("items").at("maxLength");
  for (const std::string& stop : stops) check_count("stop", "bytes in a string", stop.size(), most_bytes);
  std::erase(stops, "");  // user interfaces send "" if the user gave no stop string
  return stops;
}

std::vector<std::pair<TokenId, float>> read_logit_bias(FieldReader& fields, const Tokenizer& tokenizer) {
  std::vector<std::pair<TokenId, float>> result;
  const Json* value = fields.object("logit_bias");
  if (value == nullptr) return result;
  const Json& schema = fields.schema("logit_bias");
  const Json& biases = schema.at("additionalProperties");
  check_count("logit_bias", "tokens", value->size(), schema.at("maxProperties"));
  FieldReader entries(*value, "logit_bias");
  for (const auto& [key, bias] : value->items()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= tokenizer.vocab_size()) {
      throw invalid_request("logit_bias", "'logit_bias': expected token ids from 0 to " +
                                              std::to_string(tokenizer.vocab_size() - 1) + " as keys, found \"" + key +
                                              "\"");
    }
    result.emplace_back(token, entries.number(key, 0, biases.at("minimum"), biases.at("maximum")));
  }
  return result;
}

// Reads a seed, which is any 64-bit value. Responses report it as an unsigned number; OpenAI's seeds are signed.
std::optional<uint64_t> read_seed(FieldReader& fields) {
  const Json* value = fields.find("seed");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  return static_cast<uint64_t>(read_integer(*value, "seed", INT64_MIN, INT64_MAX));
}

// Reads `kv_cache` or `speculative`. It checks only the type; the engine checks names and parameters.
nlohmann::json read_spec(FieldReader& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_string() && !value->is_object()) throw wrong_type(fields.path(key), "a string or an object", *value);
  const std::string text = dump(*value);
  if (text.size() > kMaxSpecBytes) {
    throw invalid_request(fields.path(key), "'" + fields.path(key) + "': expected at most " +
                                                std::to_string(kMaxSpecBytes) + " bytes of JSON, found " +
                                                std::to_string(text.size()));
  }
  return nlohmann::json::parse(text);
}

}  // namespace

Json parse_body(std::string_view body) {
  try {
    return parse_json(body);
  } catch (const JsonSyntaxError& error) {
    throw invalid_request("", std::string("The request body is not valid JSON: ") + error.what());
  }
}

std::string make_id(std::string_view prefix) {
  static constexpr std::string_view kAlphabet = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id(prefix);
  for (size_t i = 0; i < kIdCharacters; ++i) id += kAlphabet[random() % kAlphabet.size()];
  return id;
}

void read_model(FieldReader& fields, const ServedModel& model, ApiRequest* request) {
  request->model = model.names.front();
  const auto name = fields.string("model");
  if (name && std::find(model.names.begin(), model.names.end(), *name) == model.names.end()) {
    throw model_not_found(*name);
  }
}

void read_streaming(FieldReader& fields, ApiRequest* request) {
  request->stream = fields.boolean("stream");
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!request->stream) {
    throw invalid_request("stream_options", "'stream_options' is only allowed when 'stream' is true");
  }
  FieldReader inner(*options, "stream_options");
  request->include_usage = inner.boolean("include_usage", false);
  request->continuous_usage = inner.boolean("continuous_usage_stats", false) && request->include_usage;
  request->include_drafts = inner.boolean("include_drafts", false);
  // OpenAI pads chunks so that their length reveals nothing. A local server does not need that.
  inner.boolean("include_obfuscation", false);
  inner.finish();
}

std::vector<TokenId> read_token_ids(const Json& array, const std::string& path, const Tokenizer& tokenizer) {
  if (!array.is_array()) throw wrong_type(path, "an array of token ids", array);
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  const int64_t last = tokenizer.vocab_size() - 1;
  for (const Json& token : array) {
    // The path of an element costs time, so it is built only for an error.
    if (!token.is_number_integer() || token < 0 || token > last) {
      read_integer(token, path + "[" + std::to_string(tokens.size()) + "]", 0, last);
    }
    tokens.push_back(token.get<TokenId>());
  }
  return tokens;
}

void check_tokens_fit(int64_t tokens, const std::string& param, const Engine& engine) {
  if (tokens <= engine.context_length()) return;
  throw to_api_error(RequestError(RequestError::Kind::kContextLength, param,
                                  "this model's maximum context length is " + std::to_string(engine.context_length()) +
                                      " tokens, but the prompt has at least " + std::to_string(tokens)));
}

void check_text_fits(std::string_view text, const std::string& param, const Engine& engine) {
  check_tokens_fit(engine.tokenizer().min_tokens(text), param, engine);
}

int64_t read_max_tokens(FieldReader& fields, std::string_view key, int64_t least) {
  const Json* value = fields.find(key);
  const bool all = value != nullptr && value->is_number() && value->get<double>() == -1;
  return all ? -1 : fields.integer(key, fields.schema(key).value("default", int64_t{-1}), least);
}

RetentionHint read_retention(FieldReader& fields) {
  RetentionHint hint;
  if (const auto kept = fields.string("prompt_cache_retention")) {
    const Json& allowed = fields.schema("prompt_cache_retention").at("enum");
    if (std::ranges::find(allowed, Json(*kept)) == allowed.end()) {
      throw invalid_request("prompt_cache_retention",
                            "'prompt_cache_retention': expected \"in_memory\" or \"24h\", found \"" + *kept + '"');
    }
    if (*kept == "24h") hint = {.priority = RetentionHint::kRaised, .ttl_seconds = 24 * 60 * 60};
  }
  const Json* object = fields.object("retention");
  if (object == nullptr) return hint;
  const Json& limits = fields.schema("retention").at("properties");
  FieldReader inner(*object, "retention");
  const auto read = [&](const char* name) {
    const Json& of = limits.at(name);
    return inner.integer(name, of.at("default"), of.at("minimum"), of.at("maximum"));
  };
  hint = {.priority = static_cast<int32_t>(read("priority")), .ttl_seconds = read("ttl_seconds")};
  inner.finish();
  return hint;
}

void read_generation(FieldReader& fields, const ServedModel& model, GenerationRequest* request) {
  const Tokenizer& tokenizer = model.engine.tokenizer();
  request->n = static_cast<int32_t>(fields.integer("n"));
  SamplingParams& sampling = request->sampling;
  for (const SamplingField& field : kSamplingFields) {
    const double usual = model.sampling.value(std::string(field.name), field.of(sampling));
    field.set(field.is_whole() ? static_cast<double>(fields.integer(field.name, static_cast<int64_t>(usual)))
                               : fields.number(field.name, static_cast<float>(usual)),
              &sampling);
  }
  sampling.logit_bias = read_logit_bias(fields, tokenizer);
  sampling.seed = read_seed(fields);
  request->stop = read_stop(fields);
  if (const Json* ids = fields.array("stop_token_ids")) {
    check_count("stop_token_ids", "tokens", ids->size(), fields.schema("stop_token_ids").at("maxItems"));
    request->stop_token_ids = read_token_ids(*ids, "stop_token_ids", tokenizer);
  }
  request->min_tokens = fields.integer("min_tokens");
  request->ignore_eos = fields.boolean("ignore_eos");
  request->skip_special_tokens = fields.boolean("skip_special_tokens");
  request->kv_cache = read_spec(fields, "kv_cache");
  request->cache_salt = fields.string("cache_salt").value_or("");
  request->prompt_cache_key = fields.string("prompt_cache_key").value_or("");
  request->retention = read_retention(fields);
  request->speculative = read_spec(fields, "speculative");
}

}  // namespace smartkv::openai
