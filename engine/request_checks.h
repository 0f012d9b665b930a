// What makes a request invalid, whatever the engine is doing at the moment.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace smartkv {

struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_sequences = 0;
};

// Throws a RequestError (kInvalid or kContextLength) that names the field, what is allowed and what was found.
void check_request(const GenerationRequest& request, const RequestLimits& limits);

// Whether a list of the operator's allows a name; an empty one allows all.
bool allows(const std::vector<std::string>& list, std::string_view name);

// That the request names only what options.allowed_policies and options.allowed_speculation list: in kv_cache,
// speculative and speculative.kv_cache. A preset is a name of its own; "off" is always allowed, and so is leaving it to
// the server. Throws a RequestError (kInvalid) that names the field and the list.
void check_allowed(const GenerationRequest& request, const EngineOptions& options);

// That the two lists hold known names only, and the server's own defaults. Throws RequestError (kInvalid).
// run: what calls each check, so that it can collect their errors.
void check_allowed_lists(
    const EngineOptions& options,
    const std::function<void(const std::function<void()>&)>& run = [](const std::function<void()>& check) { check(); });

}  // namespace smartkv
