#include "engine/request_checks.h"

#include <cmath>
#include <sstream>

#include "engine/sampling/sampling_fields.h"
#include "engine/speculation/pillar_cache.h"
#include "engine/speculation/spec.h"

namespace smartkv {
namespace {

template <typename T>
[[noreturn]] void invalid(const std::string& field, const std::string& expected, const T& found) {
  std::ostringstream message;
  message << field << ": expected " << expected << ", found " << found;
  throw RequestError(RequestError::Kind::kInvalid, field, message.str());
}

template <typename T>
void check(bool ok, const char* field, const std::string& expected, const T& found) {
  if (!ok) invalid(field, expected, found);
}

void check_token(TokenId token, const char* field, const RequestLimits& limits) {
  if (token >= 0 && token < limits.vocab_size) return;
  invalid(field, "token ids in [0, " + std::to_string(limits.vocab_size) + ")", token);
}

void check_sampling(const SamplingParams& params, const RequestLimits& limits) {
  for (const SamplingField& field : kSamplingFields) {
    const double value = field.of(params);
    if (field.allows(value)) continue;
    invalid(std::string(field.name),
            std::string(field.is_whole() ? "an integer in " : "a number in ") + (field.above_min ? "(" : "[") +
                std::to_string(field.min) + ", " + std::to_string(field.max) + "]",
            value);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    check_token(token, "logit_bias", limits);
    check(std::isfinite(bias), "logit_bias", "finite numbers", bias);
  }
}

// Returns the name in a spec, which is "name" or {KEY: "name", ...}. Empty if there is none; the spec's own parser
// reports that.
std::string name_in(const nlohmann::json& spec, const char* key) {
  const nlohmann::json name = spec.is_object() ? spec.value(key, nlohmann::json()) : spec;
  return name.is_string() ? name.get<std::string>() : "";
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : ", \"") + name + '"';
  return text;
}

void check_listed(const std::string& field, const std::string& name, const std::vector<std::string>& allowed,
                  const char* option) {
  if (name.empty() || allows(allowed, name)) return;
  invalid(field, "one of " + listed(allowed) + ", which this server allows (" + option + ")", '"' + name + '"');
}

// Returns whether a policy or preset has this name. pillar_attn counts, too, although only drafts can use it.
bool known_policy(std::string_view name) { return name == kPillarAttn || allows(plannable_names({}), name); }

bool known_method(const std::string& name) {
  try {
    parse_speculation(name);
    return true;
  } catch (const RequestError&) {
    return false;
  }
}

}  // namespace

bool allows(const std::vector<std::string>& list, std::string_view name) {
  return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
}

void check_allowed(const GenerationRequest& request, const EngineOptions& options) {
  check_listed("kv_cache", name_in(request.kv_cache, "policy"), options.allowed_policies, "allowed_policies");
  const std::string method = name_in(request.speculative, "method");
  if (method != name(DraftMethod::kOff)) {
    check_listed("speculative", method, options.allowed_speculation, "allowed_speculation");
  }
  if (request.speculative.is_object() && request.speculative.contains("kv_cache")) {
    check_listed("speculative.kv_cache", name_in(request.speculative.at("kv_cache"), "policy"),
                 options.allowed_policies, "allowed_policies");
  }
}

void check_chosen(const std::string& field, const nlohmann::json& spec, const KvCachePolicy* policy,
                  const EngineOptions& options) {
  if (policy == nullptr || !Promise::is_in(spec)) return;
  check_listed(field, std::string(policy->name()), options.allowed_policies, "allowed_policies");
}

void check_allowed_lists(const EngineOptions& options, const RunCheck& run) {
  bool all_known = true;
  const auto refuse = [&](const char* list, const char* expected, const std::string& name) {
    all_known = false;
    run([&] { invalid(list, expected, '"' + name + '"'); });
  };
  for (const std::string& name : options.allowed_policies) {
    if (!known_policy(name)) refuse("allowed_policies", "names of policies and presets", name);
  }
  for (const std::string& name : options.allowed_speculation) {
    if (!known_method(name)) refuse("allowed_speculation", "names of speculation methods", name);
  }
  if (!all_known) return;
  run([&] {
    GenerationRequest defaults;
    defaults.kv_cache = options.kv_cache.is_null() ? "full" : options.kv_cache;
    defaults.speculative = options.speculative;
    check_allowed(defaults, options);
  });
}

void check_request(const GenerationRequest& request, const RequestLimits& limits) {
  check(!request.prompt.empty(), "prompt", "at least one token", "none");
  for (const TokenId token : request.prompt) check_token(token, "prompt", limits);
  check(request.n >= 1 && request.n <= limits.max_sequences, "n",
        "an integer in [1, " + std::to_string(limits.max_sequences) + "]", request.n);
  check(request.max_tokens >= 0, "max_tokens", "an integer >= 0", request.max_tokens);
  check(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens, "min_tokens",
        "an integer in [0, max_tokens = " + std::to_string(request.max_tokens) + "]", request.min_tokens);
  check_sampling(request.sampling, limits);
  for (const std::string& stop : request.stop) check(!stop.empty(), "stop", "non-empty strings", "\"\"");
  for (const TokenId token : request.stop_token_ids) check_token(token, "stop_token_ids", limits);
  check(request.logprobs >= -1, "logprobs", "an integer >= 0", request.logprobs);
  check(request.prompt_logprobs >= -1, "prompt_logprobs", "an integer >= 0", request.prompt_logprobs);

  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens + std::min<int64_t>(request.max_tokens, 1) > limits.context_length) {
    throw RequestError(RequestError::Kind::kContextLength, "prompt",
                       "this model's maximum context length is " + std::to_string(limits.context_length) +
                           " tokens, but the prompt has " + std::to_string(prompt_tokens) +
                           (request.max_tokens > 0 ? " and leaves no room for output" : ""));
  }
}

}  // namespace smartkv
