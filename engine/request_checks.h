// Checks of requests that do not depend on what the engine is doing at the moment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/policy.h"
#include "engine/engine.h"

namespace smartkv {

// The limits of the model and the server.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_sequences = 0;
};

// Checks the request's fields except kv_cache, speculative and grammar. Throws a RequestError (kInvalid or
// kContextLength) that says which field is wrong, what was expected and what was found.
void check_request(const GenerationRequest& request, const RequestLimits& limits);

// Returns whether one of the operator's lists allows a name. An empty list allows every name.
bool allows(const std::vector<std::string>& list, std::string_view name);

// Checks that kv_cache, speculative and speculative.kv_cache use only names in options.allowed_policies and
// options.allowed_speculation. A preset counts under its own name. "off" is always allowed, and so is a field that
// leaves the choice to the server. Throws a RequestError (kInvalid) that names the field and the list.
void check_allowed(const GenerationRequest& request, const EngineOptions& options);

// As check_allowed(), for the policy that a promise in a field has chosen. Does nothing for other specs. `policy` may
// be null.
void check_chosen(const std::string& field, const nlohmann::json& spec, const KvCachePolicy* policy,
                  const EngineOptions& options);

// Checks that both lists hold only known names, and that they allow the server's own defaults. Throws RequestError
// (kInvalid). `run` calls each check; it may catch their errors in order to collect them.
void check_allowed_lists(const EngineOptions& options, const RunCheck& run = run_check);

}  // namespace smartkv
